"""Places the stages of a plan for inference on backends: patterns first, then whole candidates, the fastest wins."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.model.backends.backend import Backend
from graphpipe.model.backends.eager import EAGER
from graphpipe.model.backends.place_stage import placed_program
from graphpipe.model.backends.placed_program import PlacedRegion
from graphpipe.model.backends.region_programs import region_program
from graphpipe.model.backends.registry import all_backends, find_backend
from graphpipe.model.capture.capture import Captured
from graphpipe.model.inputs import Inputs, name_inputs
from graphpipe.model.split.split import split, submodules_for
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.plans.stage import BackendRegion
from graphpipe.profiler.placement.evolution import Genome, evolve
from graphpipe.profiler.placement.frontier_program import Placed, cheapest_cover
from graphpipe.profiler.placement.pattern_costs import PatternCosts, check_outputs
from graphpipe.profiler.placement.patterns import patterns_of
from graphpipe.profiler.placement.timing import alternating_medians, steady_seconds
from graphpipe.profiler.placement.timing_cache import TimingCache

Regions = tuple[BackendRegion, ...]
LONGEST = 2
"""Operators of the largest pattern. Operators of a captured model are whole layers, so patterns are large already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """How to place."""

    backends: tuple[str, ...] = ()
    """Names of backends; empty: all that are installed. `eager` is always one of them."""
    longest: int = LONGEST
    rounds: int = 15
    """Number of alternating runs of the candidates."""
    generations: int = 4
    """Number of generations of the evolutionary search."""
    search_seconds: float = 120.0
    """Seconds after which the evolutionary search for a stage and a backend does not begin another candidate."""
    seed: int = 0
    cache: Path | None = None
    """The folder of measured patterns; None keeps nothing."""
    clock: Callable[[], float] = time.perf_counter
    """The clock, in seconds. Processor time is not lengthened by other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlacement:
    """What was measured for a stage, and what won."""

    stage: str
    regions: Regions
    """Regions that backends run; empty if `eager` alone is fastest."""
    chosen: str
    seconds: Mapping[str, float]
    """Seconds of a micro-batch, by candidate: each backend alone, `operators` (the dynamic programme), and for each
    backend for whole graphs the evolutionary search."""
    failed: Mapping[str, str]
    """The reason why a backend alone could not run the whole stage, by backend."""
    patterns: int
    """Number of patterns that were measured, and not known already."""


def usable_backends(names: Sequence[str], tell: Callable[[str], None]) -> list[Backend]:
    """Return the backends of these names that are installed, `eager` first. The others are told with the reason.

    Raises:
        InvalidInput: a name is unknown.
    """
    backends, known = [EAGER], all_backends()
    for name in names or known:
        if name not in known:
            raise InvalidInput(f"unknown backend '{name}'", remedy=nearest(name, list(known)))
        if reason := known[name].missing():
            tell(f"backend '{name}' is left out: {reason}")
        elif known[name] not in backends:
            backends.append(known[name])
    return backends


def place(
    plan: Plan,
    module: nn.Module,
    inputs: Inputs,
    captured: Captured,
    options: PlaceOptions,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Plan, list[StagePlacement]]:
    """Return the plan with the fastest regions found for every stage, and what was measured.

    The chosen placement of a stage is never slower than the best single backend by these measurements, because each
    single backend is a candidate.

    Args:
        plan: for inference.
        module: the model of the plan.
        inputs: example inputs of any number of samples.
        captured: the capture of the plan's graph.
        options: which backends, and how long to search.
        tell: called with a line about each backend that is left out.

    Raises:
        InvalidInput: the plan trains, or a backend is unknown.
    """
    if plan.trains:
        raise InvalidInput("the plan trains", where="plan", remedy="Plan with inference=True.")
    backends, module = usable_backends(options.backends, tell), module.eval()
    programs, cache = split(module, plan, captured), TimingCache(folder=options.cache)
    placed: list[StagePlacement] = []
    with torch.no_grad():
        for number, stage in enumerate(plan.stages):
            values = _values(module, plan, captured, inputs, stage.micro_batch // stage.degree)
            search = _StageSearch(plan, module, captured, number, programs[number], values, backends, cache, options)
            placed.append(search.placement())
    stages = tuple(replace(stage, regions=best.regions) for stage, best in zip(plan.stages, placed, strict=True))
    return replace(plan, stages=stages), placed


def _values(module: nn.Module, plan: Plan, captured: Captured, inputs: Inputs, samples: int) -> dict[str, Tensor]:
    """Return every value between operators for some samples, by running one operator after the other."""
    named = name_inputs(plan.graph.input_layout, inputs)
    rows = torch.arange(samples) % len(next(iter(named.values())))
    values, called = {name: value[rows] for name, value in named.items()}, submodules_for(module, plan.graph)
    for op in captured.graph.order:
        values |= region_program(called, captured, (op,))(values)[0]
    return values


@dataclass(slots=True)
class _StageSearch:
    """The search of one stage."""

    plan: Plan
    module: nn.Module
    captured: Captured
    stage: int
    whole: StageProgram
    values: dict[str, Tensor]
    backends: Sequence[Backend]
    cache: TimingCache
    options: PlaceOptions
    regions: dict[BackendRegion, PlacedRegion] = field(default_factory=dict[BackendRegion, PlacedRegion])
    """Regions that are compiled already: many genomes of the evolutionary search share them."""

    def placement(self) -> StagePlacement:
        """Return the fastest candidate. The evolutionary search only counts if it gains."""
        ops = self.plan.stages[self.stage].ops
        candidates, failed = dict[str, Regions](), dict[str, str]()
        runs: dict[str, Callable[[], object]] = {}
        for backend in self.backends:
            regions = () if backend is EAGER else (BackendRegion(backend=backend.name, ops=ops),)
            if refused := [op for op in ops if not backend.runs(self.plan.graph[op])]:
                failed[backend.name] = f"it does not run operator '{refused[0]}'"
                continue
            try:
                runs[backend.name] = self._run(regions, backend)
                candidates[backend.name] = regions
            except InvalidInput as error:
                failed[backend.name] = error.what
        costs = PatternCosts(
            called=submodules_for(self.module, self.plan.graph),
            captured=self.captured,
            values=self.values,
            backends=[backend for backend in self.backends if backend.kind == "operators"],
            cache=self.cache,
            clock=self.options.clock,
        )
        patterns = patterns_of(self.plan.graph, ops, self.options.longest)
        cover = cheapest_cover(self.plan.graph, patterns, costs.cheapest)
        assert cover is not None, "eager runs every operator"
        self._add("operators", joined(cover[1]), candidates, runs)
        for backend in (backend for backend in self.backends if backend.kind == "graph"):
            self._add(f"operators and {backend.name}", self._evolved(cover[1], backend), candidates, runs)
        seconds = alternating_medians(runs, rounds=self.options.rounds, clock=self.options.clock)
        chosen = min(seconds, key=seconds.__getitem__)  # of equals a single backend, which comes first
        return StagePlacement(
            stage=self.plan.stages[self.stage].name,
            regions=candidates[chosen],
            chosen=chosen,
            seconds=seconds,
            failed=failed,
            patterns=costs.measured,
        )

    def _add(
        self, name: str, regions: Regions, candidates: dict[str, Regions], runs: dict[str, Callable[[], object]]
    ) -> None:
        if regions not in candidates.values():
            runs[name], candidates[name] = self._run(regions), regions

    def _run(self, regions: Regions, backend: Backend | None = None) -> Callable[[], object]:
        """Return a call that computes the stage with these regions, compiled already.

        Raises:
            InvalidInput: a region cannot be compiled, or the outputs differ too much.
        """
        if not regions:
            return partial(self.whole, self.values)
        here = replace(self.plan.stages[self.stage], regions=regions)
        stages = (*self.plan.stages[: self.stage], here, *self.plan.stages[self.stage + 1 :])
        plan = replace(self.plan, stages=stages)
        program = placed_program(self.module, plan, self.stage, self.whole, self.captured, self.regions)
        outputs = program(self.values)
        loosest = max((find_backend(part.backend) for part in regions), key=lambda part: part.relative_tolerance)
        check_outputs(backend or loosest, outputs, self.whole(self.values))
        return partial(program, self.values)

    def _evolved(self, cover: Sequence[Placed], backend: Backend) -> Regions:
        # A ResNet-50 was still compiling after 20 minutes: every candidate has new regions, and there are up to 250.
        end = self.options.clock() + self.options.search_seconds

        def regions(genome: Genome) -> Regions:
            pairs = zip(cover, genome, strict=True)
            return joined([replace(region, backend=backend.name) if bit else region for region, bit in pairs])

        def seconds(genome: Genome) -> float:
            if self.options.clock() > end:
                return inf
            try:
                return steady_seconds(self._run(regions(genome)), most_seconds=0.2, clock=self.options.clock)
            except InvalidInput:
                return inf

        cover_backends = evolve(len(cover), seconds, seed=self.options.seed, generations=self.options.generations)
        return regions(cover_backends[1])


def joined(cover: Sequence[Placed]) -> Regions:
    """Return a cover as regions. Neighbours on one backend become one region; only `eager` gives no regions.

    Pieces in the order of the graph only read from those before them, so a run of them can be one region.
    """
    regions: list[BackendRegion] = []
    for region in cover:
        if regions and regions[-1].backend == region.backend:
            regions[-1] = replace(regions[-1], ops=(*regions[-1].ops, *region.ops))
        else:
            regions.append(BackendRegion(backend=region.backend, ops=region.ops))
    return () if all(region.backend == EAGER.name for region in regions) else tuple(regions)
