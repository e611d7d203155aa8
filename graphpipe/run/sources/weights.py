"""`gp.Weights`: where the initial weights of a training come from."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import final

from graphpipe.errors import InvalidInput
from graphpipe.run.checkpoint.folder import CHECKPOINTS, list_checkpoints
from graphpipe.run.checkpoint.manifest import MANIFEST
from graphpipe.run.initial_weights.init_code import InitFunction
from graphpipe.run.initial_weights.init_weights import InitWeights
from graphpipe.run.initial_weights.weight_source import WeightSource
from graphpipe.run.sources.checkpoint_reader import CheckpointReader
from graphpipe.run.sources.dcp_metadata import METADATA
from graphpipe.run.sources.dcp_reader import DcpReader
from graphpipe.run.sources.file_weights import FileWeights, as_patterns
from graphpipe.run.sources.safetensors_reader import INDEX, SINGLE, SafetensorsReader

_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@final
class Weights:
    """Makes sources of weights, for `PipelineOptions.initial_weights` and `Task.initial_weights`.

    A rank fills only the tensors of its own stages. Buffers that are in no file are made by the code of their modules.
    """

    @staticmethod
    def init(function: InitFunction | None = None) -> WeightSource:
        """Return the source of new weights, which depend on the seed and on the name of each parameter only.

        Args:
            function: called with every submodule, inner ones first; fills the tensors that the submodule holds itself,
                in place. Those of other ranks have no data then. None: a function that builds the model runs again.
                For a model on the meta device, `_init_weights(submodule)` of a module around a submodule, as models of
                Hugging Face have, or its own `reset_parameters`.
        """
        return InitWeights(function=function)

    @staticmethod
    def read(
        path: str | Path, *, new: Sequence[str] = (), ignore: Sequence[str] = (), averaged: bool = False
    ) -> WeightSource:
        """Return the source that reads files: only the bytes of a rank's own tensors are read.

        Args:
            path: a safetensors file; a folder of Hugging Face, with an index or one file; a checkpoint of GraphPipe, a
                folder of them, or the folder of a run; or a folder of torch.distributed.checkpoint.
            new: patterns of tensors that the files need not have, such as `["score.*"]`. `init` makes them.
            ignore: patterns of tensors in the files that the model need not have.
            averaged: of a checkpoint of GraphPipe, read the averages of the weights (`evaluation.average_decay`).

        Raises:
            InvalidInput: there is no such file, or it is none of these.
        """
        place = Path(path)
        kind = _kind(place)
        return FileWeights(
            path=place,
            open=partial(CheckpointReader, averaged=True) if averaged and kind is CheckpointReader else kind,
            new=as_patterns(new, "Weights, new"),
            ignore=as_patterns(ignore, "Weights, ignore"),
        )


def _kind(
    path: Path,
) -> type[SafetensorsReader] | type[CheckpointReader] | type[DcpReader]:
    if not path.exists():
        raise InvalidInput("no such file or folder", where=str(path), remedy="Look at `initial_weights`.")
    if path.is_file():
        if path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json"):
            return SafetensorsReader
    elif (path / INDEX).is_file() or (path / SINGLE).is_file():
        return SafetensorsReader
    elif (path / MANIFEST).is_file() or (path / CHECKPOINTS).is_dir() or list_checkpoints(path):
        return CheckpointReader
    elif (path / METADATA).is_file():
        return DcpReader
    pickled = path.suffix in (".bin", ".pt", ".pth") or any((path / name).is_file() for name in _PICKLED)
    remedy = "Save it as safetensors, because a pickle can run code: `model.save_pretrained(folder)`."
    known = "a safetensors file, a folder of them with an index, or a checkpoint"
    raise InvalidInput(
        f"is neither {known}", where=str(path), remedy=remedy if pickled else "Look at `initial_weights`."
    )
