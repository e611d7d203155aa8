"""What to answer, and how: the job that every rank of `graphpipe infer` is given."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.planners.problem.options import InferenceObjective

_KIND = "inference-job"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceJob:
    """The model, the requests and where the answers go. Paths are relative to `folder`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: str
    """The model: a zoo name, `package.module:function` or `file.py:function`."""
    data: str
    """A file of requests, or a function that returns them."""
    output: str
    """The file of answers; its ending names the format."""
    folder: str
    """The folder where relative paths begin."""
    weights: str | None = None
    """A safetensors file, a checkpoint or the folder of a run. None: the weights that the model's function gives."""
    request_samples: int | None = None
    """Number of samples of a request that is cut from a file of tensors. None: the plan's mini-batch."""
    objective: InferenceObjective = "throughput"
    """The objective of plans for the devices that are left after a loss."""
    timeout_seconds: float = 300.0
    """Seconds to wait for a rank that neither answers nor dies."""
    faults: tuple[str, ...] = ()
    """Faults to inject, as in `train.faults`. A step is a window of samples."""

    @property
    def output_path(self) -> Path:
        """The file of answers."""
        return Path(self.folder) / self.output

    @property
    def journal_path(self) -> Path:
        """The answers so far. The file stays if the ranks fail or are interrupted."""
        return self.output_path.with_name(f"{self.output_path.name}.partial")

    def save(self, path: Path) -> None:
        """Write the job."""
        write_document(path, _KIND, self)

    @staticmethod
    def load(path: Path) -> "InferenceJob":
        """Return the job that `save` has written."""

        def build(body: dict[str, Any]) -> InferenceJob:
            return from_body(InferenceJob, body, str(path))

        return read_document(path, _KIND, build)
