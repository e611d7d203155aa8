"""Measures all operators of a model, and then what a step takes besides them."""

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs import OpCost, Temporaries
from graphpipe.costs.ranks.rank_graph import rank_graph
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import Captured
from graphpipe.profiler.compiled_layers import CompiledLayers
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.empty_run import empty_run
from graphpipe.profiler.known_costs import KnownCosts
from graphpipe.profiler.op_memory import temporaries
from graphpipe.profiler.operators.op_runs import Criterion, OpRun, op_runs
from graphpipe.profiler.profile_ops import OnProgress, one_pass, profile_ops
from graphpipe.profiler.saved.kept_values import kept_values, with_kept
from graphpipe.profiler.saved.saved_values import KeptValues
from graphpipe.profiler.step_overheads import StepOverheads, profile_optimizer, profile_task_overhead

_MOST_SAMPLE_RUNS = 4
"""Operators that run before every measurement of the task overhead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledModel:
    """The model whose operators are measured, and what they run on."""

    model: nn.Module
    captured: Captured
    cluster: Cluster
    values: dict[str, Tensor]
    """The inputs by name, with as many rows as the largest batch."""
    criterion: Criterion | None
    device: torch.device

    def runs(self, ranks: int = 1) -> Iterable[OpRun]:
        """Return the runs of all operators; of those that devices share, if there are several."""
        return op_runs(self.model, self.captured, self.cluster, self.values, self.criterion, self.device, ranks)

    def graph(self, ranks: int) -> Graph:
        """Return the graph whose operators these are."""
        return self.captured.graph if ranks == 1 else rank_graph(self.captured.graph, ranks)


@final
class OperatorMeasuring:
    """Measures operators, first those of one device, then those that devices share, and last what lies around them.

    Args:
        subject: whose operators.
        batch_sizes: numbers of samples to measure at, ascending.
        effort: how long to measure each operator.
        known: what was measured before, by the number of devices that share a replica.
        layers: lets layers run compiled. None: eagerly.
    """

    def __init__(
        self,
        subject: ProfiledModel,
        batch_sizes: Sequence[int],
        effort: Effort,
        known: Mapping[int, KnownCosts],
        layers: CompiledLayers | None,
    ) -> None:
        self._subject, self._batch_sizes, self._effort = subject, batch_sizes, effort
        self._known, self._layers = known, layers
        self._empty = empty_run(max(batch_sizes), subject.device, subject.captured.precision)
        self._samples: list[OpRun] = []  # a few different operators

    def in_a_copy(self, between: Callable[[], object]) -> None:
        """Measure all operators, as the copy of this process does that stands for another rank."""
        profile_ops(self._subject.runs(), self._device_type, self._batch_sizes, replace(self._effort, between=between))

    def rows(self, ranks: int, on_progress: OnProgress) -> tuple[OpCost, ...]:
        """Return the costs of the operators that so many devices share; of all operators, if it is one.

        Args:
            ranks: devices that share a replica.
            on_progress: as for `profile_ops`.
        """
        known, memory, kept = self._known[ranks], dict[str, Temporaries](), list[KeptValues]()
        runs = self._with_memory(ranks, memory)
        rows = profile_ops(
            self._with_kept(runs, kept) if ranks == 1 else runs,
            self._device_type,
            self._batch_sizes,
            self._effort,
            empty=self._empty,
            find=known.row,
            on_progress=on_progress,
        )
        rows = tuple(replace(row, temporaries=memory[row.op]) for row in rows)
        return with_kept(rows, kept) if ranks == 1 else rows

    def step(self, stepper: torch.optim.Optimizer | None) -> StepOverheads:
        """Return what a step takes besides its operators, which have been measured before.

        Args:
            stepper: an optimizer of copies of the parameters; None without parameters.
        """
        known = self._known[1]
        if (step := known.step(stepper)) is None:
            between = partial(one_pass, self._samples, max(self._batch_sizes), self._effort)
            after_operators = replace(self._effort, between=between)
            step = StepOverheads(
                optimizer=profile_optimizer(stepper, after_operators),
                task_overhead_seconds=profile_task_overhead(self._empty, after_operators),
            )
            known.keep_step(stepper, step)
        return step

    @property
    def _device_type(self) -> str:
        return self._subject.cluster.devices[0].type

    def _with_memory(self, ranks: int, memory: dict[str, Temporaries]) -> Generator[OpRun]:
        # Yields the runs. Fills `memory` with the temporaries of each. Layers are compiled once their eager memory is
        # measured, because the compiler passes over what runs in the measuring mode. What devices share runs eagerly.
        graph, known = self._subject.graph(ranks), self._known[ranks]
        layers = self._layers if ranks == 1 else None
        found: dict[Hashable, Temporaries] = {}
        for run in self._subject.runs(ranks):
            if run.signature not in found:
                row = known.row(run)
                found[run.signature] = (row.temporaries if row else None) or self._temporaries(run, graph, layers)
            memory[run.op] = found[run.signature]
            if layers is not None:
                layers.install(run)
            if len(self._samples) < _MOST_SAMPLE_RUNS and all(
                run.signature != each.signature for each in self._samples
            ):
                self._samples.append(run)
            yield run

    def _temporaries(self, run: OpRun, graph: Graph, layers: CompiledLayers | None) -> Temporaries:
        work = graph[run.op].work
        eager = temporaries(run, self._batch_sizes, work.saved_bytes_per_sample, work.saved_bytes_per_forward)
        return eager if layers is None else layers.temporaries(run, self._batch_sizes, eager)

    def _with_kept(self, runs: Iterable[OpRun], kept: list[KeptValues]) -> Generator[OpRun]:
        # Yields the runs. Fills `kept` with what each keeps for its backward.
        known = self._known[1]
        for run in runs:
            if (found := known.kept(run)) is None:
                found = kept_values(run, self._batch_sizes)
                known.note_kept(found)
            kept.append(found)
            yield run
