"""Changes of the devices of stages, where devices differ or host several stages."""

from dataclasses import replace

import pytest
from problems import towers

from graphpipe.cluster import DeviceType
from graphpipe.planners.improve.changes import Hosted
from graphpipe.planners.improve.device_changes import DeviceChanges
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.plans import Plan

SIZES = (1, 2, 4, 8)


def problem_of(types: list[str]) -> Problem:
    """Return two towers of two operators, on devices of these types."""
    plain = towers([2, 2], len(types), 8)
    kind: DeviceType = plain.cluster.device_types[0]
    kinds = tuple(replace(kind, name=name) for name in dict.fromkeys(types))
    devices = tuple(replace(device, type=name) for device, name in zip(plain.cluster.devices, types, strict=True))
    cluster = replace(plain.cluster, device_types=kinds, devices=devices)
    rows = tuple(replace(row, device_type=name) for name in dict.fromkeys(types) for row in plain.costs.rows)
    costs = replace(plain.costs, rows=rows)
    return Problem(plain.graph, costs, cluster, 8)


def hosted(plan: Plan) -> list[Hosted]:
    return [(Part.of(stage), stage.devices) for stage in plan.stages]


def changed_teams(plan: Plan) -> set[tuple[tuple[int, ...], ...]]:
    changed = [change(hosted(plan)) for change in DeviceChanges(plan, SIZES)]
    return {tuple(team for _, team in stages) for stages in changed if stages is not None}


def two_stages(types: list[str], first: tuple[int, ...], second: tuple[int, ...]) -> Plan:
    problem = problem_of(types)
    ops = problem.graph.order
    parts = [Part(ops[:2], len(first), 4), Part(ops[2:], len(second), 4)]
    return assemble(problem, parts, planner="test", devices=[first, second])


def test_devices_are_taken_swapped_merged_and_split() -> None:
    plan = two_stages(["fast", "slow", "fast"], (0, 1), (2,))
    teams = changed_teams(plan)
    assert ((0,), (1, 2)) in teams  # The slow device is taken.
    assert ((1,), (0, 2)) in teams  # Or a fast one.
    assert ((0, 2), (1,)) in teams  # Fast and slow are swapped.
    assert ((0, 1, 2),) not in teams  # Three devices divide none of the sizes.
    assert ((0,), (1,), (2,)) in teams  # The first stage is split.
    assert ((1, 2), (0,)) not in teams  # Fast for fast changes nothing.


def test_unused_devices_are_taken() -> None:
    plan = two_stages(["fast", "slow", "slow"], (0,), (1,))
    assert {((0, 2), (1,)), ((0,), (1, 2)), ((0, 1),)} <= changed_teams(plan)


def test_stages_on_the_same_device_merge_there() -> None:
    plan = two_stages(["fast", "slow"], (0,), (0,))
    assert ((0,),) in changed_teams(plan)


@pytest.mark.parametrize("types", [["a", "b", "a"], ["a", "b", "c", "a"]])
def test_operators_and_sizes_stay_sound(types: list[str]) -> None:
    plan = two_stages(types, (0, 1), (2,))
    for change in DeviceChanges(plan, SIZES):
        if (stages := change(hosted(plan))) is not None:
            assert sorted(name for part, _ in stages for name in part.ops) == sorted(plan.graph.order)
            assert all(part.degree == len(team) and part.micro_batch % part.degree == 0 for part, team in stages)
