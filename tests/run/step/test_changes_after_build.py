"""What a user changes, or asks for, that a pipeline cannot follow: it is said before a weight changes."""

import copy
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.lr_scheduler import ReduceLROnPlateau

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture_nodes
from tests.support.programs.plain_training import cut_plan


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 6), torch.randint(3, (8,))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("frozen", ["0", "2", "0.bias"])
def test_layers_unfrozen_after_the_pipeline_was_built(frozen: str) -> None:
    """They were never trained."""
    one, (x, y) = model(), batch()
    weights = [each for name, each in one.named_parameters() if name.startswith(frozen)]
    for each in weights:
        each.requires_grad_(False)
    with gp.Pipeline(
        cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4), one, nn.functional.cross_entropy, sgd
    ) as it:
        it.step(x, y)
        before = copy.deepcopy(one.state_dict())
        weights[0].requires_grad_(True)
        with pytest.raises(InvalidInput, match="was unfrozen after the pipeline was built"):
            it.step(x, y)
        it.evaluate(x, y)
        assert all(torch.equal(before[name], each) for name, each in one.state_dict().items())
        weights[0].requires_grad_(False)
        it.step(x, y)


@pytest.mark.timeout(60)
def test_layers_frozen_later_are_not_trained() -> None:
    one, (x, y) = model(), batch()
    with gp.Pipeline(
        cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4), one, nn.functional.cross_entropy, sgd
    ) as it:
        it.step(x, y)
        one[0].requires_grad_(False)
        first, _, last, _ = one.parameters()
        held, head = first.detach().clone(), last.detach().clone()
        it.step(x, y)
        assert torch.equal(held, first)
        assert not torch.equal(head, last)
        one[0].requires_grad_(True)
        it.step(x, y)
        assert not torch.equal(held, first)


@pytest.mark.timeout(60)
def test_layers_unfrozen_between_capture_and_pipeline() -> None:
    one, (x, _) = model(), batch()
    one[0].requires_grad_(False)
    captured = capture_nodes(one, x)
    plan = cut_plan(captured.graph, batch_size=8, micro_batch=4)
    one[0].requires_grad_(True)
    for each in (captured, None):
        with pytest.raises(InvalidInput, match="'0' has trainable False in the plan, True in this model"):
            gp.Pipeline(plan, one, nn.functional.cross_entropy, options=gp.PipelineOptions(captured=each))


@pytest.mark.timeout(60)
def test_another_dtype_than_the_example() -> None:
    """Torch spoke of mat1 and mat2."""
    one, (x, y) = model(), batch()
    with gp.Pipeline(cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4), one, nn.functional.cross_entropy) as it:
        for other in (torch.float64, torch.float16, torch.int64):
            with pytest.raises(InvalidInput, match=r"input 'input': is .*, in the example it was float32"):
                it.step(x.to(other), y)
        it.step(x, y)


@pytest.mark.timeout(60)
def test_an_integer_type_that_the_model_takes() -> None:
    one = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(6, 3))
    x, y = torch.randint(9, (8, 1)), torch.randint(3, (8,))
    with gp.Pipeline(cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4), one, nn.functional.cross_entropy) as it:
        assert it.step(x, y) == it.step(x.int(), y)


class Twice(torch.optim.SGD):
    def step(self, again: int) -> None:  # type: ignore[override]
        del again


class OwnStep(torch.optim.LBFGS):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Warned:
    """A schedule of the user's own, without torch's base class."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, loss: float) -> None:
        del loss


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("optimizer", "scheduler", "name"),
    [
        (sgd, Warned, r"scheduler: Warned.step\(\) needs 'loss'"),
        (torch.optim.LBFGS, None, r"optimizer: LBFGS.step\(\) needs 'closure'"),
        (OwnStep, None, r"optimizer: OwnStep.step\(\) needs 'closure'"),
        (lambda p: Twice(p, lr=0.1), None, r"Twice.step\(\) needs 'again'"),
    ],
)
def test_optimizers_that_need_more(optimizer: Any, scheduler: Any, name: str) -> None:
    """The weights were already changed when a TypeError came. LBFGS always needs a closure."""
    one, (x, _) = model(), batch()
    plan = cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4)
    with pytest.raises(InvalidInput, match=name):
        gp.Pipeline(
            plan, one, nn.functional.cross_entropy, optimizer, options=gp.PipelineOptions(lr_scheduler=scheduler)
        )


class Wrapped(torch.optim.SGD):
    def step(it, closure: Any = None) -> Any:  # pyright: ignore
        return super().step(closure)


@pytest.mark.timeout(60)
def test_a_step_may_call_its_object_as_it_likes() -> None:
    """It was refused, because an optimizer that it wraps was not named `self`."""
    one, (x, y) = model(), batch()
    plan = cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4)
    with gp.Pipeline(plan, one, nn.functional.cross_entropy, lambda p: Wrapped(p, lr=0.1)) as it:
        assert it.step(x, y) > it.step(x, y)


@pytest.mark.timeout(60)
def test_a_plateau_follows_what_it_is_given_and_no_step() -> None:
    one, (x, y) = model(), batch()
    plan = cut_plan(gp.capture(one, x), batch_size=8, micro_batch=4)
    options = gp.PipelineOptions(lr_scheduler=lambda built: ReduceLROnPlateau(built, patience=0))
    with gp.Pipeline(plan, one, nn.functional.cross_entropy, sgd, options=options) as it:
        it.step(x, y)
        for loss, rate in ((1.0, 0.1), (2.0, 0.01), (0.5, 0.01)):
            it.step(x, y)
            for each in it.state.optimizers:
                each.evaluated(loss)
                assert [group["lr"] for group in each.optimizer.param_groups] == [pytest.approx(rate)]
        it.step(x, y)


class Scaled(nn.Module):
    """A model whose own forward reads numbers, a function, a buffer and a layer of a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.scale, self.seen, self.powers = 1.0, 0, [1.0, 1.0]
        self.bend, self.factors, self.settings = torch.tanh, {"all": 1.0}, SimpleNamespace(offset=0.0, other=0.0)
        self.register_buffer("shift", torch.zeros(6))
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        for layer, power in zip(self.layers, self.powers, strict=False):
            x = self.bend(layer(x)) * self.scale**power + self.shift
        return self.block(x) * self.factors["all"] + self.settings.offset


@cache
def of_scaled() -> tuple[gp.Plan, gp.PipelineOptions]:
    captured = capture_nodes(Scaled(), batch()[0])
    return cut_plan(captured.graph, batch_size=8, micro_batch=4), gp.PipelineOptions(captured=captured)


def replaced_data(one: Scaled) -> None:
    one.layers[0].weight = nn.Parameter(torch.zeros(6, 6))


def set_to(name: str, value: Any) -> Callable[[Scaled], None]:
    return lambda one: setattr(one, name, value)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "'layers.1' was replaced": lambda one: one.layers.__setitem__(1, nn.Linear(6, 6)),
    "'layers.0.weight' was replaced": replaced_data,
    "'layers.2' was added": lambda one: one.layers.append(nn.Linear(6, 6)),
    "'layers.1' was removed": lambda one: one.layers.__delitem__(1),
    "'more' was added": set_to("more", nn.Linear(6, 6)),
    "'block.0.bias' was removed": lambda one: delattr(one.block[0], "bias"),
    "'shift' was replaced": set_to("shift", torch.ones(6)),
    "'layers.0.weight' was removed": lambda one: nn.utils.weight_norm(one.layers[0]),
    "'layers.0.parametrizations' was added|weight' was removed": lambda one: spectral_norm(one.layers[0]),
    "'block' was replaced": lambda one: setattr(one, "block", torch.compile(one.block)),
    "the model or a submodule was compiled": lambda one: one.layers[0].compile(),
    "the forward of the model, or of a submodule, was replaced": set_to("forward", torch.tanh),
    "'layers.0.weight' was changed from torch.float32 to torch.float16": lambda one: one.half(),
    "'block.2.weight' was changed from torch.float32 to torch.float64": lambda one: one.block[2].to(torch.float64),
    "a hook of the model was added": lambda one: one.register_forward_hook(lambda *_: None),
    "a hook of 'layers'": lambda one: one.layers.register_forward_pre_hook(lambda *_: None),
    "a hook of the model": lambda one: one.register_full_backward_hook(lambda *_: None),
    "'layers.0.bias' got a hook": lambda one: one.layers[0].bias.register_hook(torch.sign),
    "'block.0.bias' got a hook": lambda one: one.block[0].bias.register_post_accumulate_grad_hook(lambda _: None),
    r"'powers', which the forward reads, was changed from \[1.0, 1.0\] to": lambda one: one.powers.__setitem__(0, 2.0),
    "'scale', which the forward reads, was changed from 1.0 to 2.0": set_to("scale", 2.0),
    "'bend', which the forward reads, was changed from tanh to sin": set_to("bend", torch.sin),
    r"'factors', which the forward reads, was changed from \{'all': 1.0\} to": lambda one: one.factors.update(all=2.0),
    "'settings.offset', which the forward reads, was changed from 0.0": lambda one: setattr(
        one.settings, "offset", 1.0
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("said", CHANGES)
def test_what_was_changed_after_the_pipeline_was_built(said: str) -> None:
    """The old layers, weights and numbers were trained, without a word."""
    (plan, options), one, (x, y) = of_scaled(), Scaled(), batch()
    with gp.Pipeline(plan, one, nn.functional.cross_entropy, options=options) as it:
        it.step(x, y)
        CHANGES[said](one)
        with pytest.raises(InvalidInput, match=rf"{said}.* after the pipeline was built"):
            it.step(x, y)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.calls = nn.Parameter(torch.ones(6)), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.weight


@pytest.mark.timeout(60)
def test_what_a_forward_changes_itself() -> None:
    """With two replicas in one process, the second step took the count of the first for a change by the user."""
    one, (x, y), cluster = nn.Sequential(Counted(), nn.Linear(6, 3)), batch(), gp.Cluster.preset("local:2")
    graph = gp.capture(one, x)
    both = gp.HandStage(ops=tuple(op.name for op in graph.ops), devices=(0, 1), micro_batch=4)
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=[both])
    with gp.Pipeline(plan, one, nn.functional.cross_entropy, sgd) as it:
        losses = [float(it.step(x, y)) for _ in range(2)]
    assert losses[1] < losses[0]


@pytest.mark.timeout(60)
def test_what_may_be_changed_after_the_pipeline_was_built() -> None:
    one: Any = Scaled()
    (plan, options), (x, y) = of_scaled(), batch()
    with gp.Pipeline(plan, one, nn.functional.cross_entropy, sgd, options=options) as it:
        first = it.step(x, y)
        one.seen, one.settings.other, one.block[1].p = (
            5,
            1.0,
            0.5,
        )  # what no followed forward reads, and what the pipeline calls as it is
        calls: list[int] = []
        handle = one.layers[0].register_forward_hook(lambda *_: calls.append(1))
        one.load_state_dict(one.state_dict())
        one.get_buffer("shift").add_(0.5)
        one.eval().train()
        assert it.step(x, y) != first
        assert len(calls) == 2
        handle.remove()
        one.layers[1].register_full_backward_hook(lambda _, given, got: (given[0] * 0,))
        it.step(x, y)
    assert not one.layers[0].weight.requires_grad or one.layers[0].weight.grad is not None


@pytest.mark.timeout(60)
def test_hooks_on_copies_of_a_layer() -> None:
    """A second replica in the process is a copy, which has no such hook."""
    one, (x, y) = Scaled(), batch()
    graph, cluster = gp.capture(one, x), gp.Cluster.preset("local:2")
    stages = [gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=4)]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages)
    with gp.Pipeline(plan, one, nn.functional.cross_entropy, sgd) as it:
        it.step(x, y)
        one.layers[0].register_forward_hook(lambda *_: None)
        with pytest.raises(InvalidInput, match=r"a hook of 'layers.0' was added"):
            it.step(x, y)
