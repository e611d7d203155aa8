"""A stage of inference. If its forward fails, the samples that cause it are found, and the others are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.errors import GraphPipeError
from graphpipe.model.stage_program import StageProgram, ValueSpec
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.comm.rank_placement import ReplicaSlot
from graphpipe.run.stage.edge_values import check_outputs
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.receive_buffers import LastUse, NamedTensors, ReceiveBuffers
from graphpipe.run.step.gather_outputs import Piece
from graphpipe.schedule import StageTask

Computed = tuple[NamedTensors, Any]
"""Outputs by name, and the model's result (None except at the output stage)."""


@dataclass(slots=True, kw_only=True)
class InferenceReplica:
    """A replica (see `worker.worker`) that only does forwards."""

    slot: ReplicaSlot
    """Which replica of which stage it is."""
    stage_name: str
    """The name of its stage."""
    program: StageProgram
    """Computes the stage."""
    device: torch.device
    """Where it computes."""
    parameters: tuple[nn.Parameter, ...] = ()
    """Parameters whose gradients are reduced: none."""


@dataclass(slots=True)
class InferenceReplicaRun:
    """A replica in one window of requests."""

    replica: InferenceReplica
    """The replica that computes."""
    received: ReceiveBuffers
    """The values that have arrived, or will."""
    outgoing: dict[int, NamedTensors] = field(default_factory=dict[int, NamedTensors])
    """Values that the last task has to send, by edge."""
    outgoing_task: StageTask | None = None
    """The last task."""
    failures: dict[int, str] = field(default_factory=dict[int, str])
    """Why samples of this window failed here, by sample."""
    results: list[Piece] = field(default_factory=list[Piece])
    """The model's outputs of this window. Rows of failed samples hold other samples' outputs."""

    def do(self, task: StageTask, rows: SampleRange, batch: MiniBatch) -> None:
        """Compute these samples of a window, and keep what the stage sends."""
        replica = self.replica
        values = batch.input_rows(replica.program.model_inputs, rows, replica.device)
        for by_name in self.received.take(task).values():
            values |= by_name
        computed = self._compute(values, rows)
        sends = replica.program.sends
        if computed is None:
            self.outgoing = {edge: _zeros(specs, rows, replica.device) for edge, specs in sends.items()}
        else:
            outputs, result = computed
            check_outputs(outputs, {edge: batch.specs[edge] for edge in sends}, len(rows), replica.stage_name)
            self.outgoing = {edge: {spec.name: outputs[spec.name] for spec in specs} for edge, specs in sends.items()}
            if replica.program.is_output:
                self.results.append((rows, result))
        self.outgoing_task = task

    def last_uses(self, task: StageTask, *, training: bool) -> list[LastUse]:
        """Return the received values, because nothing reads them after their task."""
        del training
        return self.received.last_uses(task, "forward")

    def _compute(self, values: Mapping[str, Tensor], rows: SampleRange) -> Computed | None:
        """Return the outputs, None if every sample fails."""
        try:
            return self.replica.program(values)
        except (GraphPipeError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            return self._without_failing(values, rows, error)

    def _without_failing(self, values: Mapping[str, Tensor], rows: SampleRange, error: Exception) -> Computed | None:
        """Return the outputs with a sample that works in place of every sample that fails when it is alone.

        The micro-batch keeps its size, so the other samples' outputs have the bits that they would have had.
        """
        failing: dict[int, Exception] = {}
        for at in range(len(rows)):
            try:
                self.replica.program({name: value[at : at + 1] for name, value in values.items()})
            except Exception as own:
                failing[at] = own
        works = next((at for at in range(len(rows)) if at not in failing), None)
        if works is not None and failing:
            kept = [works if at in failing else at for at in range(len(rows))]
            index = torch.tensor(kept, device=self.replica.device)
            try:
                computed = self.replica.program({name: value.index_select(0, index) for name, value in values.items()})
            except Exception as again:
                error = again
            else:
                self._note(rows, failing)
                return computed
        self._note(rows, {at: failing.get(at, error) for at in range(len(rows))})
        return None

    def offload(self, micro_batch: int) -> None:
        """Not called: nothing waits for a backward."""
        raise AssertionError("inference offloads nothing")

    def fetch(self, micro_batch: int) -> None:
        """Not called either."""
        raise AssertionError("inference offloads nothing")

    def _note(self, rows: SampleRange, failing: Mapping[int, Exception]) -> None:
        for at, error in failing.items():
            text = " ".join(str(error).split())[:500]
            self.failures[rows.start + at] = f"stage '{self.replica.stage_name}': {type(error).__name__}: {text}"


def _zeros(specs: Sequence[ValueSpec], rows: SampleRange, device: torch.device) -> NamedTensors:
    return {it.name: torch.zeros((len(rows), *it.sample_shape), dtype=it.dtype, device=device) for it in specs}
