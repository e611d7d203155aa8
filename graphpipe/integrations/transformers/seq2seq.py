"""`PipelineSeq2SeqTrainer`: `transformers.Seq2SeqTrainer` with a pipeline."""

from typing import Any

from torch import nn
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from graphpipe.integrations.transformers.trainer import PipelineTrainer


class PipelineSeq2SeqTrainer(PipelineTrainer, Seq2SeqTrainer):
    """Takes the arguments of `transformers.Seq2SeqTrainer` and those of `PipelineTrainer`.

    With `predict_with_generate`, every rank generates with the whole model, which it gets before.
    """

    args: Seq2SeqTrainingArguments
    _shared_at = -1

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> Any:
        """Evaluate a batch; the first of an evaluation that generates gives every rank the whole model."""
        del gen_kwargs  # `Seq2SeqTrainer.evaluate` keeps them
        generates = self.args.predict_with_generate and not prediction_loss_only
        if generates and self._gradients is not None and self._shared_at != self.state.global_step:
            self._gradients.share_model()
            self._shared_at = self.state.global_step
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
