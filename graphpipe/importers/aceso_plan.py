"""The plan of an Aceso run, as its JSON file describes it."""

from dataclasses import dataclass
from pathlib import Path

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_json

_PER_OP = ("model_parallel_size_of_each_op", "data_parallel_size_of_each_op", "recompute_ops", "algo_of_each_op")
MOST_GPUS = 65_536
"""The limit of a cluster file, because a wrong number must not fill the memory."""


# The fields are spelled as in the file. Fields that an import does not need may be there too.
@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoPlan:
    """What Aceso ran. Lists have an entry for each stage, and `_of_each_op` one for each operator of the stage."""

    model_name: str
    model_size: str
    num_layers: int
    seq_length: int = 1
    """Tokens of a sample."""
    global_batch_size: int
    micro_batch_size: int
    """Samples of a micro-batch over all replicas of a stage."""
    num_stages: int
    num_gpus: tuple[int, ...]
    checkpoint_activations: tuple[bool, ...]
    """Whether the flags in `recompute_ops` count."""
    num_ops_in_each_stage: tuple[int, ...]
    model_parallel_size_of_each_op: tuple[tuple[int, ...], ...]
    data_parallel_size_of_each_op: tuple[tuple[int, ...], ...]
    recompute_ops: tuple[tuple[int, ...], ...]
    algo_of_each_op: tuple[tuple[int, ...], ...]

    @staticmethod
    def load(path: Path) -> "AcesoPlan":
        """Read a plan.

        Raises:
            InvalidInput: unreadable, a field is missing or of another type, lists do not have an entry for each stage
                or operator, or the operators of a stage run with several degrees.
        """
        body = read_json(path)
        if not isinstance(body, dict):
            raise InvalidInput("is not a plan of Aceso", where=str(path), remedy="A plan is a JSON object.")
        known = {name: body[name] for name in AcesoPlan.__dataclass_fields__ if name in body}
        plan = from_body(AcesoPlan, known, str(path))
        plan._check(str(path))
        return plan

    def _check(self, where: str) -> None:
        for field in ("num_layers", "seq_length", "global_batch_size", "micro_batch_size", "num_stages"):
            _at_least_one(getattr(self, field), f"{where}, {field}")
        for field in ("num_gpus", "checkpoint_activations", "num_ops_in_each_stage", *_PER_OP):
            _length(getattr(self, field), self.num_stages, "stages", f"{where}, {field}")
        if sum(self.num_gpus) > MOST_GPUS:
            what = f"sums to {sum(self.num_gpus)} GPUs, must be at most {MOST_GPUS}"
            raise InvalidInput(what, where=f"{where}, num_gpus", remedy="Correct the file.")
        for stage, count in enumerate(self.num_ops_in_each_stage):
            _at_least_one(count, f"{where}, num_ops_in_each_stage, stage {stage}")
            for field in _PER_OP:
                _length(getattr(self, field)[stage], count, "operators", f"{where}, {field}, stage {stage}")
            for field in _PER_OP[:2]:
                self._check_degree(field, stage, where)
            used, listed = self.tensor(stage) * self.replicas(stage), self.num_gpus[stage]
            if used != listed:
                what = f"has {listed} GPUs, but tensor- and data-parallel degrees {self.tensor(stage)} x "
                what += str(self.replicas(stage))
                raise InvalidInput(what, where=f"{where}, num_gpus, stage {stage}", remedy="The product must match.")
            if self.micro_batch_size % self.replicas(stage):
                what = f"{self.micro_batch_size} samples do not split over {self.replicas(stage)} replicas"
                raise InvalidInput(what, where=f"{where}, micro_batch_size", remedy="Use another micro-batch.")
        if self.global_batch_size % self.micro_batch_size:
            what = f"{self.global_batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}"
            raise InvalidInput(what, where=f"{where}, global_batch_size", remedy="Use another mini-batch.")

    def _check_degree(self, field: str, stage: int, where: str) -> None:
        degrees = sorted(set(getattr(self, field)[stage]))
        where = f"{where}, {field}, stage {stage}"
        if len(degrees) > 1:
            remedy = "Only stages whose operators all run with the same degree can be imported."
            raise InvalidInput(f"lists the degrees {', '.join(map(str, degrees))}", where=where, remedy=remedy)
        _at_least_one(degrees[0], where)

    @property
    def model(self) -> str:
        """The name of the model in the names of the profiles."""
        return f"{self.model_name}_{self.model_size}"

    def tensor(self, stage: int) -> int:
        """Return the tensor-parallel degree of a stage."""
        return self.model_parallel_size_of_each_op[stage][0]

    def replicas(self, stage: int) -> int:
        """Return the data-parallel degree of a stage."""
        return self.data_parallel_size_of_each_op[stage][0]


def _at_least_one(number: int, where: str) -> None:
    if not 1 <= number < 2**31:
        raise InvalidInput(f"is {number}, must be from 1 to {2**31 - 1}", where=where, remedy="Correct the file.")


def _length(entries: tuple[object, ...], count: int, of: str, where: str) -> None:
    if len(entries) != count:
        what = f"has {len(entries)} entries for {count} {of}"
        raise InvalidInput(what, where=where, remedy=f"Write one entry for each of the {of}.")
