"""`transformers.Trainer`, with a pipeline in place of one device's forward and backward.

    from graphpipe.integrations.transformers import PipelineTrainer

`PipelineTrainer` and `PipelineSeq2SeqTrainer` take the arguments of the trainers that they extend.
"""

from graphpipe.errors import InvalidInput

try:
    from graphpipe.integrations.transformers.seq2seq import PipelineSeq2SeqTrainer
    from graphpipe.integrations.transformers.trainer import PipelineTrainer
except ModuleNotFoundError as error:
    raise InvalidInput(
        f"{error.name} is not installed",
        where="graphpipe.integrations.transformers",
        remedy="pip install 'graphpipe-torch[trainer]'.",
    ) from error

__all__ = ["PipelineSeq2SeqTrainer", "PipelineTrainer"]
