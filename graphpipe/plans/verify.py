"""Verify a plan. Every constraint and every byte is derived only from graph, cluster and cost table.

The verifier shares no code with the planners or their cost look-up, so an error in either is detected.
Constraints C1 to C4 are those of GraphPipe (section 3).
"""

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from math import inf

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import Graph
from graphpipe.graph.splits.verify_splits import check_splits
from graphpipe.plans.stage import OTHER_BACKWARDS, PlanFields, WeightPolicy
from graphpipe.plans.verify_memory import RELATIVE, check_memory, check_neighbours, submodule
from graphpipe.plans.verify_ranks import check_devices, check_ranks

_FEW = 40
"""Names that an error may list."""
MOST_MICRO_BATCHES = 2**19
"""Each is a task in memory. A typing error must not take all of it."""


def verify(plan: PlanFields) -> None:
    """Check a plan from any source.

    Raises:
        InvalidInput: a constraint is violated; the stage and both sides of the mismatch are named.
        Infeasible: the stages of a device need more memory than it has. The missing bytes are given.
    """
    plan.costs.check_for(plan.graph, {device.type for device in plan.cluster.devices})
    check_splits(plan.graph)
    stage_of = _check_partition(plan)
    _check_batches(plan)
    _check_weights(plan)
    check_devices(plan)
    check_ranks(plan)
    _check_convex(plan, stage_of)
    _check_edges(plan, stage_of)
    _check_tied(plan, stage_of)
    _check_whole_batch(plan, stage_of)
    _check_recompute(plan)
    _check_offload(plan)
    _check_inference(plan)
    _check_backends(plan)
    check_memory(plan)


def _check_partition(plan: PlanFields) -> dict[str, int]:
    """C1, first half: the stages partition the operators."""
    if not plan.stages:
        raise InvalidInput("the plan has no stages")
    for name, count in Counter(stage.name for stage in plan.stages).items():
        if count > 1:
            raise InvalidInput(f"{count} stages are named '{name}'", remedy="Names must be unique.")
    stage_of: dict[str, int] = {}
    for position, stage in enumerate(plan.stages):
        if not stage.ops:
            raise InvalidInput("has no operators", where=f"stage '{stage.name}'")
        for name in stage.ops:
            if name not in plan.graph.index:
                raise InvalidInput(f"lists '{name}', which is not an operator", where=f"stage '{stage.name}'")
            if name in stage_of:
                other = plan.stages[stage_of[name]].name
                raise InvalidInput(f"operator '{name}' is also in stage '{other}'", where=f"stage '{stage.name}'")
            stage_of[name] = position
    left = [op.name for op in plan.graph.ops if op.name not in stage_of]
    if left:
        raise InvalidInput(f"{len(left)} operators are not in any stage, first '{left[0]}'")
    return stage_of


def _check_batches(plan: PlanFields) -> None:
    if plan.batch_size < 1:
        raise InvalidInput(f"is {plan.batch_size}, must be at least 1", where="batch_size")
    count = sum(-(-plan.batch_size // max(1, stage.micro_batch)) for stage in plan.stages)
    if count > MOST_MICRO_BATCHES:
        raise InvalidInput(
            f"a mini-batch has {count:,} micro-batches in all stages, must have at most {MOST_MICRO_BATCHES:,}",
            where="batch_size",
            remedy="Choose fewer samples, or larger micro-batches.",
        )
    for stage in plan.stages:
        where = f"stage '{stage.name}'"
        if not 1 <= stage.micro_batch <= plan.batch_size:
            raise InvalidInput(f"micro_batch is {stage.micro_batch}, must be 1 to batch {plan.batch_size}", where=where)
        if plan.batch_size % stage.micro_batch and plan.weights != "flush":
            what = f"micro_batch {stage.micro_batch} does not divide batch {plan.batch_size}"
            remedy = "Choose a micro-batch that divides it, or the weight policy 'flush'."
            raise InvalidInput(f"{what}, as the weight policy '{plan.weights}' needs", where=where, remedy=remedy)
        replicas = max(1, len(stage.devices) // max(1, stage.tensor))
        if stage.micro_batch % replicas:
            what = f"{replicas} {'devices' if stage.tensor == 1 else 'replicas'}"
            raise InvalidInput(f"micro_batch {stage.micro_batch} does not split over {what}", where=where)
        if stage.burst < 1:
            raise InvalidInput(f"burst is {stage.burst}, must be at least 1", where=where)
        # With a double buffer, one micro-batch of the next mini-batch may begin before a mini-batch has ended.
        room: dict[WeightPolicy, float] = {"flush": 0, "double-buffer": stage.micro_batch}
        most = plan.batch_size + -plan.batch_size % stage.micro_batch + room.get(plan.weights, inf)
        if stage.in_flight % stage.micro_batch or not stage.micro_batch <= stage.in_flight <= most:
            up_to = f" up to {'batch ' if most == plan.batch_size else ''}{most}" if most < inf else ""
            raise InvalidInput(
                f"in_flight is {stage.in_flight}, must be a multiple of micro_batch {stage.micro_batch}{up_to}",
                where=where,
            )


def _check_weights(plan: PlanFields) -> None:
    """The weight policy fits its predictor, the numbers of versions, and what each stage shares out or shares."""
    if plan.weights == "predict" and not plan.predictor:
        remedy = "Choose pipeoptim, spectrain or xpipe."
        raise InvalidInput("is missing, but the weight policy is 'predict'", where="predictor", remedy=remedy)
    if plan.weights != "predict" and plan.predictor:
        what = f"is '{plan.predictor}', but the weight policy is '{plan.weights}'"
        raise InvalidInput(what, where="predictor", remedy="Leave it out, or choose the weight policy 'predict'.")
    for stage in plan.stages:
        where = f"stage '{stage.name}'"
        if stage.versions < 1:
            raise InvalidInput(f"versions is {stage.versions}, must be at least 1", where=where)
        if plan.weights == "flush" and stage.versions > 1:
            what = f"keeps {stage.versions} versions of its weights, but the policy 'flush' needs only one"
            raise InvalidInput(what, where=where, remedy="Set versions to 1, or choose another weight policy.")
        if plan.weights != "flush" and stage.state != "whole" and stage.degree > 1:
            what = (
                f"shards its state, and the weight policy is '{plan.weights}': replicas would exchange weights in use"
            )
            raise InvalidInput(what, where=where, remedy="Set state to 'whole', or weights to 'flush'.")
        if plan.weights in OTHER_BACKWARDS and stage.recompute != "none":
            what = f"recomputes in its backward, which reads other weights than its forward under '{plan.weights}'"
            raise InvalidInput(what, where=where, remedy="Set recompute to 'none', or weights to 'stash'.")
    if plan.weights != "flush":
        _check_unshared(plan)


def _check_unshared(plan: PlanFields) -> None:
    # Stages update at different times, so copies of a shared parameter would differ.
    home: dict[str, str] = {}
    for stage in plan.stages:
        for parameter in {name for op in stage.ops for name in plan.graph[op].parameters}:
            other = home.setdefault(parameter, stage.name)
            if other != stage.name and any(tied.name == parameter and tied.trainable for tied in plan.graph.shared):
                raise InvalidInput(
                    f"stages '{other}' and '{stage.name}' share parameter '{parameter}', but under the weight policy "
                    f"'{plan.weights}' stages update at different times",
                    where="weights",
                    remedy="Put its operators into one stage, or set weights to 'flush'.",
                )


def _check_convex(plan: PlanFields, stage_of: dict[str, int]) -> None:
    """C1, second half: no path leaves a stage and returns to it."""
    for position, stage in enumerate(plan.stages):
        outside = _reach(plan.graph, set(stage.ops), forward=True)
        back = outside & _reach(plan.graph, set(stage.ops), forward=False)
        if back:
            name = min(back)
            raise InvalidInput(
                f"is not convex: a path leaves it, passes '{name}' "
                f"of stage '{plan.stages[stage_of[name]].name}' and returns",
                where=f"stage '{plan.stages[position].name}'",
            )


def _reach(graph: Graph, start: set[str], *, forward: bool) -> set[str]:
    """Return the operators outside `start` on a path from it (or to it)."""
    following: dict[str, list[str]] = {op.name: [] for op in graph.ops}
    for edge in graph.edges:
        here, there = (edge.source, edge.target) if forward else (edge.target, edge.source)
        following[here].append(there)
    reached: set[str] = set()
    stack = [name for inside in start for name in following[inside] if name not in start]
    while stack:
        name = stack.pop()
        if name not in reached and name not in start:
            reached.add(name)
            stack.extend(following[name])
    return reached


def _check_edges(plan: PlanFields, stage_of: dict[str, int]) -> None:
    """C2: the stage edges follow from the operators' edges, and the stages are in topological order."""
    for edge in plan.edges:
        for end in (edge.source, edge.target):
            if not 0 <= end < len(plan.stages):
                raise InvalidInput(f"names stage {end} of {len(plan.stages)}", where="stage edge")
        if edge.source >= edge.target:
            names = f"'{plan.stages[edge.source].name}' -> '{plan.stages[edge.target].name}'"
            raise InvalidInput(f"stage edge {names} goes backwards", remedy="List stages in topological order.")
    listed = Counter((edge.source, edge.target) for edge in plan.edges)
    for (source, target), count in listed.items():
        if count > 1:
            raise InvalidInput(f"is listed {count} times", where=f"stage edge {source} -> {target}")
    sent: dict[tuple[int, int], dict[tuple[str, str], float]] = {}
    for edge in plan.graph.edges:
        source, target = stage_of[edge.source], stage_of[edge.target]
        if source == target:
            continue
        if (source, target) not in listed:
            names = f"'{plan.stages[source].name}' -> '{plan.stages[target].name}'"
            raise InvalidInput(f"stage edge {names} is missing: operator '{edge.source}' feeds '{edge.target}'")
        outputs = sent.setdefault((source, target), {})
        for *_, value, count in edge.reads:
            outputs[value] = max(outputs.get(value, 0.0), count)
    for edge in plan.edges:
        expected = sum(sent.get((edge.source, edge.target), {}).values())
        if abs(edge.bytes_per_sample - expected) > RELATIVE * max(1.0, expected):
            raise InvalidInput(
                f"has {edge.bytes_per_sample:.0f} bytes per sample, but its operators send {expected:.0f}",
                where=f"stage edge {edge.source} -> {edge.target}",
            )


def _check_tied(plan: PlanFields, stage_of: dict[str, int]) -> None:
    """Stages may share a parameter if the graph lists it with its size, because its gradient is summed."""
    known = {tied.name for tied in plan.graph.shared}
    owner: dict[str, int] = {}
    for op in plan.graph.ops:
        for parameter in op.parameters:
            stage = owner.setdefault(parameter, stage_of[op.name])
            if stage != stage_of[op.name] and parameter not in known:
                names = f"'{plan.stages[stage].name}' and '{plan.stages[stage_of[op.name]].name}'"
                raise InvalidInput(
                    f"parameter '{parameter}' is used in stages {names}, and the graph does not list it as shared",
                    remedy="List it with its bytes in the graph's `shared`, or put its operators into one stage.",
                )


def _check_whole_batch(plan: PlanFields, stage_of: dict[str, int]) -> None:
    for op in plan.graph.ops:
        if not op.whole_batch:
            continue
        stage = plan.stages[stage_of[op.name]]
        if stage.micro_batch != plan.batch_size or stage.degree != 1:
            raise InvalidInput(
                f"operator '{op.name}' needs the whole mini-batch of {plan.batch_size} on one device, but the stage "
                f"has micro_batch {stage.micro_batch} on {stage.degree}",
                where=f"stage '{stage.name}'",
            )


def _check_recompute(plan: PlanFields) -> None:
    """Recomputed submodules are in their stage, each once, and do not depend on each other in a cycle."""
    for stage in plan.stages:
        where = f"stage '{stage.name}', recompute"
        if not stage.recompute:
            raise InvalidInput("lists nothing", where=where, remedy="Leave it out, or write 'none'.")
        names = () if isinstance(stage.recompute, str) else stage.recompute
        for name in names:
            if not any(submodule(op, (name,)) for op in stage.ops):
                raise InvalidInput(
                    f"'{name}' is not an operator of the stage, nor a submodule with operators there",
                    where=where,
                    remedy=nearest(name, list(stage.ops)) if len(stage.ops) < _FEW else "",
                )
        homes = {op: [name for name in names if submodule(op, (name,))] for op in stage.ops}
        for op, within in homes.items():
            if len(within) > 1:
                raise InvalidInput(f"operator '{op}' is in both '{within[0]}' and '{within[1]}'", where=where)
        _check_regions(plan, {op: within[0] if within else op for op, within in homes.items()}, where)


def _check_offload(plan: PlanFields) -> None:
    """Offloaded submodules are in their stage, each once, and not recomputed. Neighbours host other stages."""
    check_neighbours(plan)
    for stage in (stage for stage in plan.stages if stage.offload):
        where = f"stage '{stage.name}', offload"
        if stage.recompute == "full":
            what = "the stage recomputes everything, so nothing is left to offload"
            raise InvalidInput(what, where=where, remedy="Leave offload out, or list what to recompute.")
        for name in stage.offload:
            if not any(submodule(op, (name,)) for op in stage.ops):
                raise InvalidInput(
                    f"'{name}' is not an operator of the stage, nor a submodule with operators there",
                    where=where,
                    remedy=nearest(name, list(stage.ops)) if len(stage.ops) < _FEW else "",
                )
        recomputed = () if isinstance(stage.recompute, str) else stage.recompute
        homes = {op: [name for name in (*stage.offload, *recomputed) if submodule(op, (name,))] for op in stage.ops}
        for op, within in homes.items():
            if len(within) > 1:
                what = "offload and recompute" if {*within} & {*recomputed} else "offload"
                raise InvalidInput(f"operator '{op}' is in both '{within[0]}' and '{within[1]}' ({what})", where=where)
        _check_regions(plan, {op: within[0] if within else op for op, within in homes.items()}, where)


def _check_backends(plan: PlanFields) -> None:
    """The regions of a stage, if it has any, partition its operators and can run one after the other."""
    for stage in (stage for stage in plan.stages if stage.regions):
        where, counts = f"stage '{stage.name}'", Counter(op for region in stage.regions for op in region.ops)
        for op in (*stage.ops, *counts):
            if op not in stage.ops:
                raise InvalidInput(f"a region has '{op}', which is not in the stage", where=where)
            if counts[op] != 1:
                raise InvalidInput(f"operator '{op}' is in {counts[op]} regions, must be in one", where=where)
        home = {op: f"{region.backend} {n}" for n, region in enumerate(stage.regions) for op in region.ops}
        _check_regions(plan, home, where, "run on its backends")


def _check_regions(plan: PlanFields, home: dict[str, str], where: str, what: str = "be computed again") -> None:
    # A stage is convex, so a path out of a region and back into it stays inside the stage.
    before: dict[str, set[str]] = {name: set() for name in home.values()}
    for edge in plan.graph.edges:
        if edge.source in home and edge.target in home and home[edge.source] != home[edge.target]:
            before[home[edge.target]].add(home[edge.source])
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        names = " -> ".join(f"'{name}'" for name in error.args[1])
        raise InvalidInput(
            f"cannot {what} piece by piece, because the pieces feed each other: {names}",
            where=where,
            remedy="Name a submodule that holds all of them, or smaller ones.",
        ) from None


def _check_inference(plan: PlanFields) -> None:
    """The stages of a plan that does not train ask for nothing that only training has."""
    if plan.trains:
        return
    if plan.weights != "flush":
        remedy = "Leave the policy out."
        raise InvalidInput(f"is '{plan.weights}', but the plan does not train", where="weights", remedy=remedy)
    for stage in plan.stages:
        for field, plain in (
            ("recompute", "none"),
            ("offload", ()),
            ("offload_to", ()),
            ("state", "whole"),
            ("backward", "auto"),
            ("burst", 1),
            ("versions", 1),
        ):
            if (value := getattr(stage, field)) != plain:
                raise InvalidInput(
                    f"{field} is {value!r}, but the plan does not train, which needs {plain!r}",
                    where=f"stage '{stage.name}'",
                    remedy="Plan again for inference.",
                )
