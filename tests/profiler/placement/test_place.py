"""Placements: the measured choice, the cache of patterns, and backends that give other outputs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.graph import Op
from graphpipe.model.backends import registry
from graphpipe.model.backends.backend import Backend, Region
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.plans.estimates import period_seconds
from graphpipe.profiler.placement.measured_costs import with_measured_costs
from graphpipe.profiler.placement.place import PlaceOptions, StagePlacement, place, usable_backends
from graphpipe.profiler.placement.timing import steady_seconds

COMPILED: list[str] = []
NOW = [0.0]
"""The clock of these tests: layers and regions move it, so that no test depends on the speed of the machine."""


class Slow(nn.Module):
    """A layer that takes a second of the tests' clock."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return pause(self.layer(x))


@torch.library.custom_op("graphpipe_tests::pause", mutates_args=())
def pause(x: Tensor) -> Tensor:
    """Return `x` after a second of the tests' clock."""
    NOW[0] += 1.0
    return x.clone()


@pause.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def remembering(name: str, offset: float = 0.0, wait: float = 0.0) -> Callable[..., Region]:
    """Return a compiler whose regions return at once what they have computed before."""

    def compile_region(module: fx.GraphModule, arguments: Sequence[Tensor]) -> Region:
        COMPILED.append(name)
        known = module(*arguments)
        sent, results = known
        changed = tuple(each + offset for each in sent), [each + offset for each in results]

        def run(*values: Tensor) -> object:
            NOW[0] += wait
            return changed

        return run

    return compile_region


def only(*names: str) -> Callable[[Op], bool]:
    """Return a predicate of operators."""
    return lambda op: op.name in names


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[gp.Plan, StagePlacement]]:
    """Return a function that places four slow layers on the given backends."""
    monkeypatch.setattr(registry.BACKENDS, "_items", dict(registry.BACKENDS))
    COMPILED.clear()
    torch.manual_seed(0)
    layers = nn.Sequential(Slow(4), Slow(4), Slow(4), Slow(4))
    inputs = torch.randn(2, 4)
    captured = capture_nodes(layers, inputs)
    cluster = gp.Cluster.preset("local:1")
    stage = gp.HandStage(ops=captured.graph.order, devices=(0,), micro_batch=8)
    costs = gp.estimate(captured.graph, cluster)
    plan = gp.hand_plan(captured.graph, costs, cluster, batch_size=8, stages=[stage], inference=True)

    def call(
        *backends: Backend, cache: Path | None = None, search_seconds: float = 1e9
    ) -> tuple[gp.Plan, StagePlacement]:
        for backend in backends:
            registry.BACKENDS.register(backend)
        options = PlaceOptions(
            backends=tuple(each.name for each in backends),
            rounds=3,
            cache=cache,
            generations=1,
            search_seconds=search_seconds,
            clock=lambda: NOW[0],
        )
        found, (placed,) = place(plan, layers, inputs, captured, options)
        return found, placed

    return call


Setting = Callable[..., tuple[gp.Plan, StagePlacement]]


def test_operators_go_where_they_are_fastest(setting: Setting) -> None:
    fast = Backend(name="fast", kind="operators", compile=remembering("fast"), runs=only("1", "2"))
    plan, placed = setting(fast)
    assert placed.chosen == "operators"
    assert [(region.backend, region.ops) for region in placed.regions] == [
        ("eager", ("0",)),
        ("fast", ("1", "2")),
        ("eager", ("3",)),
    ]
    assert plan.stages[0].regions == placed.regions
    assert placed.seconds == {"eager": 4.0, "operators": 2.0}


def test_a_placed_plan_predicts_what_was_measured(setting: Setting) -> None:
    fast = Backend(name="fast", kind="operators", compile=remembering("fast"), runs=only("1", "2"))
    plan, placed = setting(fast)
    measured = with_measured_costs(plan, [placed])
    forward = measured.cost_model.task_seconds(measured.stages[0].ops, 0, 8).forward
    assert forward == pytest.approx(2.0 + plan.costs.task_overhead_seconds)
    assert period_seconds(measured) == pytest.approx(2.0, rel=0.01) != pytest.approx(period_seconds(plan), rel=0.5)
    # What a processor has measured says nothing of other devices.
    other = replace(plan, cluster=gp.Cluster.preset("summit:1x1"))
    assert with_measured_costs(other, [placed]) is other


def test_the_best_single_backend_wins_if_nothing_is_faster(setting: Setting) -> None:
    slow = Backend(name="slow", kind="operators", compile=remembering("slow", wait=20.0))
    _, placed = setting(slow)
    assert (placed.chosen, placed.regions) == ("eager", ())
    assert placed.seconds["eager"] == min(placed.seconds.values())


def test_a_backend_for_whole_graphs_gets_what_helps(setting: Setting) -> None:
    def compile_region(module: fx.GraphModule, arguments: Sequence[Tensor]) -> Region:
        if any(node.op == "output" and node.args[0][1] for node in module.graph.nodes):  # pyright: ignore
            raise RuntimeError("cannot run operator 3")
        return remembering("graph")(module, arguments)

    _, placed = setting(Backend(name="graphs", kind="graph", compile=compile_region))
    assert "cannot run operator 3" in placed.failed["graphs"]
    assert placed.chosen == "operators and graphs"
    on = {op for region in placed.regions if region.backend == "graphs" for op in region.ops}
    assert on
    assert placed.seconds[placed.chosen] < placed.seconds["eager"]


def test_the_search_ends_at_its_limit_and_what_it_found_counts(setting: Setting) -> None:
    """Placing a ResNet-50 still compiled after 20 minutes, since each candidate of the search had many new regions."""

    def compile_slowly(module: fx.GraphModule, arguments: Sequence[Tensor]) -> Region:
        NOW[0] += 100.0
        return remembering("slow to compile")(module, arguments)

    backend = Backend(name="slow to compile", kind="graph", compile=compile_slowly, runs=only("0", "1", "2"))
    counts: list[int] = []
    for limit in (1e9, 150.0, 0.0):
        COMPILED.clear()
        _, placed = setting(backend, search_seconds=limit)
        counts.append(len(COMPILED))
        assert placed.seconds[placed.chosen] == min(placed.seconds.values()) <= placed.seconds["eager"]
    assert counts[0] > counts[1] > counts[2]


def test_other_outputs_than_eager_are_not_used(setting: Setting) -> None:
    wrong = Backend(name="wrong", kind="operators", compile=remembering("wrong", offset=1.0), relative_tolerance=1e-3)
    _, placed = setting(wrong)
    assert placed.chosen == "eager"
    assert "differs by 1" in placed.failed["wrong"]


def test_equal_layers_are_measured_once_and_kept(setting: Setting, tmp_path: Path) -> None:
    fast = Backend(name="fast", kind="operators", compile=remembering("fast"))
    _, placed = setting(fast, cache=tmp_path / "cache")
    # Inner layers are alike, and the last one returns the model's output; and so are pairs of layers.
    assert placed.patterns <= 6
    assert setting(fast, cache=tmp_path / "cache")[1].patterns == 0
    for file in (tmp_path / "cache").iterdir():
        file.write_text("NaN")
    assert setting(fast, cache=tmp_path / "cache")[1].patterns == placed.patterns


def test_a_missing_backend_is_told_and_left_out(setting: Setting) -> None:
    missing = Backend(name="gone", kind="graph", compile=remembering("gone"), missing=lambda: "gone is not installed")
    assert setting(missing)[1].chosen == "eager"
    told: list[str] = []
    assert [each.name for each in usable_backends(["gone"], told.append)] == ["eager"]
    assert told == ["backend 'gone' is left out: gone is not installed"]
    with pytest.raises(InvalidInput, match="unknown backend 'gne'"):
        usable_backends(["gne"], told.append)


def test_timing_repeats_until_the_calls_agree() -> None:
    clock = iter(range(10**6))
    calls: list[int] = []
    assert steady_seconds(lambda: calls.append(1), clock=lambda: float(next(clock))) == 1.0
    assert len(calls) == 3 + 7


def test_the_evolutionary_search_compiles_a_region_once(setting: Setting) -> None:
    # Each of its 50 and more genomes compiled all of its regions: an export to ONNX for each took a quarter of an hour.
    _, placed = setting(Backend(name="graphs", kind="graph", compile=remembering("graphs")))
    assert placed.chosen in ("graphs", "operators and graphs")
    assert len(COMPILED) <= 10  # Four operators in a row have ten runs.
