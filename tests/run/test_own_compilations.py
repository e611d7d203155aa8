"""Modules that the user has compiled are regions of their stages, compiled as the user has asked."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.model.backends.inductor import INDUCTOR
from graphpipe.model.compiled.own_compilations import own_compilations
from graphpipe.model.compiled.torch_compiler import compilation_of, set_aside, set_compiled_call
from graphpipe.model.hidden.compiled_modules import eagerly
from graphpipe.planners.gradients_apart import place_gradients
from graphpipe.run.worker.worker import StageWorker

needs_compiler = pytest.mark.skipif(bool(why := INDUCTOR.missing()), reason=why)
CLUSTER = gp.Cluster.preset("local:2")
X, LABELS = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4


class Block(nn.Module):
    """A layer of products and elementwise operations."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def eager() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block(), nn.Linear(16, 4))


def in_place(**options: Any) -> nn.Sequential:
    found = eager()
    found[0].compile(**options)
    return found


def wrapped(**options: Any) -> nn.Sequential:
    found = eager()
    found[2] = torch.compile(found[2], **options)  # type: ignore[assignment]
    return found


def whole(**options: Any) -> nn.Sequential:
    found = eager()
    found.compile(**options)
    return found


def planned(model: nn.Module, schedule: str = "1f1b", split: Sequence[str] = ()) -> gp.Plan:
    graph = gp.capture(model, X, split=split)
    cut = sum(op.name[0] in "01" for op in graph.ops)
    stages = [
        gp.HandStage(ops=graph.order[:cut], devices=(0,), micro_batch=4),
        gp.HandStage(ops=graph.order[cut:], devices=(1,), micro_batch=4),
    ]
    costs = gp.estimate(graph, CLUSTER)
    return gp.hand_plan(graph, costs, CLUSTER, batch_size=8, stages=stages, schedule=schedule)


def pipeline(plan: gp.Plan, model: nn.Module, **options: Any) -> gp.Pipeline:
    sgd = lambda weights: torch.optim.SGD(weights, lr=0.1)  # noqa: E731
    return gp.Pipeline(plan, model, nn.functional.cross_entropy, sgd, options=gp.PipelineOptions(**options))


def plain(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of the third step of plain PyTorch, which runs what the user has compiled."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), LABELS).backward()
        if step < 2:
            optimizer.step()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def check_trains_as_plain(make: Callable[[], nn.Module], plan: gp.Plan, *, compiled: dict[str, int]) -> None:
    model, expected = make(), plain(make())
    before = [vars(module).get("_compiled_call_impl") for module in model.modules()]
    with pipeline(plan, model) as running:
        for _ in range(3):
            running.step(X, LABELS)
        found = running.gradients()
        assert running.compilations == compiled
        assert set(running.backwards().values()) <= {"split"}
        assert running.evaluate(X, LABELS)[0] is not None
    assert found.keys() == expected.keys()
    largest = max(each.abs().max() for each in expected.values())
    for name, gradient in found.items():
        assert gradient is not None
        assert (gradient - expected[name]).abs().max() <= 1e-5 * largest, name
    assert [vars(module).get("_compiled_call_impl") for module in model.modules()] == before
    make().load_state_dict(model.state_dict())


MADE: dict[str, Callable[..., nn.Module]] = {"in place": in_place, "in a wrapper": wrapped, "as a whole": whole}


@pytest.mark.slow
@needs_compiler
@pytest.mark.timeout(240)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("name", MADE)
def test_gradients_are_those_of_the_users_compiled_model(name: str, schedule: str) -> None:
    make = MADE[name]
    check_trains_as_plain(make, planned(make(), schedule), compiled={"Block": 2 if name == "as a whole" else 1})


@pytest.mark.slow
@needs_compiler
@pytest.mark.timeout(240)
def test_a_module_that_a_plan_cuts_is_compiled_in_parts() -> None:
    whole_stage = planned(whole(), split=["0", "1", "2"])
    check_trains_as_plain(whole, whole_stage, compiled={"stage 's0'": 1, "stage 's1'": 1})


@needs_compiler
@pytest.mark.timeout(120)
@pytest.mark.parametrize("make", [in_place, pytest.param(wrapped, marks=pytest.mark.slow)])
def test_the_backend_of_the_user_compiles_from_the_second_step_on(make: Callable[..., nn.Module]) -> None:
    """The backend `eager` of torch returns what it gets, so this takes a second."""
    seen: list[int] = []

    def backend(graph: fx.GraphModule, given: Sequence[Any]) -> Any:
        seen.append(len(graph.graph.nodes))
        return graph.forward

    torch.compiler.reset()  # another test's code for the same layer would do
    model = make(backend=backend)
    plan, expected = planned(model), plain(eager())
    with pipeline(plan, model) as running:
        running.step(X, LABELS)
        assert not seen  # captured, and run eagerly: the first step checks what the stages compute
        for _ in range(2):
            running.step(X, LABELS)
        assert running.compilations == {"Block": 1}
        found = running.gradients()
    assert seen
    seen.clear()
    graph = plan.graph
    stages = [gp.HandStage(ops=graph.order, devices=(0,), micro_batch=4)]
    inferring = gp.hand_plan(graph, gp.estimate(graph, CLUSTER), CLUSTER, batch_size=8, stages=stages, inference=True)
    with gp.InferencePipeline(inferring, model) as answering:
        (answer,) = answering.map([X])
    assert seen
    with eagerly(model), torch.no_grad():
        assert answer is not None
        assert torch.allclose(answer.outputs, model(X), atol=1e-6)
    for name, gradient in found.items():
        assert gradient is not None
        assert torch.allclose(gradient, expected[name.replace("_orig_mod.", "")], atol=1e-6), name
    with pytest.raises(InvalidInput, match="is compiled by the backend 'backend', whose backward has no halves"):
        pipeline(planned(wrapped(backend=backend), "zb-h1"), wrapped(backend=backend))


def test_a_module_whose_operations_run_eagerly_is_named() -> None:
    plan = planned(in_place(), split=["0", "1"])
    with (
        pytest.warns(UserWarning, match=r"'0' is compiled by torch\.compile, and the plan cuts it into operations"),
        pipeline(plan, in_place()) as running,
    ):
        assert running.step(X, LABELS) > 0


@needs_compiler
@pytest.mark.parametrize(("make", "where"), [(in_place, "module '0'"), (wrapped, "module '2'"), (whole, "model")])
def test_what_the_user_has_compiled_is_named_where_it_cannot_be(make: Callable[..., nn.Module], where: str) -> None:
    """The message named the option `compile`, which nobody had given."""
    graph = gp.capture(make(), X)
    stage = gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=4, state="all")
    plan = gp.hand_plan(graph, gp.estimate(graph, CLUSTER), CLUSTER, batch_size=8, stages=[stage])
    message = f"{where}: is compiled by torch.compile, and cannot be in stage 's0': engine 'fsdp2' shards its weights"
    with pytest.raises(InvalidInput, match=message) as caught:
        pipeline(plan, make())
    assert caught.value.remedy == "Give it as it was before torch.compile, or plan without sharded weights."


def test_names_are_those_of_the_users_model() -> None:
    graph = gp.capture(wrapped(), X)
    assert [op.name for op in graph.ops] == ["0", "1", "2._orig_mod", "3"]
    names = {name for op in graph.ops for name in op.parameters}
    assert names == dict(wrapped().named_parameters()).keys()


def test_how_the_user_has_compiled_is_known() -> None:
    made = compilation_of(in_place(mode="max-autotune-no-cudagraphs", dynamic=True)[0])
    assert made.backend is None
    assert made.options["max_autotune"]
    assert made.dynamic
    assert compilation_of(wrapped(options={"shape_padding": False})[2]).options == {"shape_padding": False}
    other = compilation_of(wrapped(backend="aot_eager", dynamic=False)[2])
    assert (other.name, other.dynamic) == ("aot_eager", False)
    assert other.backend is not None
    assert compilation_of(in_place()[0]).key == compilation_of(whole()).key != made.key


@pytest.mark.parametrize("name", MADE)
def test_regions_are_what_the_user_has_compiled(name: str) -> None:
    model = MADE[name]()
    with pipeline(planned(model), model) as running:
        worker: StageWorker = running._worker  # pyright: ignore[reportPrivateUsage]
        modules = [(replica.stage_name, replica.module) for replica in worker.replicas.values()]
        found = {stage: len(regions) for stage, regions in own_compilations(model, modules).items()}
    assert found == {"in place": {"s0": 1}, "in a wrapper": {"s1": 1}, "as a whole": {"s0": 2, "s1": 1}}[name]


def test_what_is_set_aside_comes_back() -> None:
    model = nn.Sequential(in_place()[0], wrapped()[2])
    call, forward = model[0]._compiled_call_impl, vars(model[1])["forward"]
    with set_aside(model.modules()):
        set_compiled_call(model[0], lambda x: x + 1)
        assert torch.equal(model[0](X), X + 1)
        set_compiled_call(model[0], None)
        assert torch.equal(model(X), eager()[2](eager()[0](X)))
    assert model[0]._compiled_call_impl is call
    assert vars(model[1])["forward"] is forward
    with eagerly(model):
        assert torch.equal(model(X), eager()[2](eager()[0](X)))


def test_compiled_layers_have_no_gradients_apart() -> None:
    graph, cluster = gp.capture(in_place(), X), gp.Cluster.preset("summit:1x2")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8)
    with pytest.raises(InvalidInput, match=r"is compiled by torch\.compile, and gradients are computed apart"):
        gp.Pipeline(place_gradients(plan), in_place(), nn.functional.cross_entropy)
