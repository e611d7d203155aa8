"""A backward in two halves gives, bit for bit, the gradients of the whole backward."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from run_models import STAGES, cross_entropy, fan_batch
from run_plans import StageLine, captured_plan, hand_split, plan_of
from run_ranks import run_ranks, values
from run_splits import Case, Scale, Wrap, cases, fan_pipeline, in_halves, losses_and_gradients, whole_cases
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

from graphpipe.errors import InvalidInput
from graphpipe.model import DagModule
from graphpipe.model.halves.current_half import running_half
from graphpipe.model.halves.releasable_tensors import ReleasableTensors
from graphpipe.model.halves.split_backward import WeightHalf, input_half
from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.model.split.autograd_graph import autograd_graph
from graphpipe.model.split.whole_backwards import whole_backwards
from graphpipe.model.torch_private import current_backward_node, memory_key
from graphpipe.planning.backwards import choose_backwards
from graphpipe.profiler.op_memory import LiveBytes
from graphpipe.report.tables.plan_table import plan_table
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify import verify

Gradients = list[Tensor | None]
TRUSTED = lambda _: True  # noqa: E731


def forward(case: Case, saved: ReleasableTensors) -> tuple[list[Tensor], list[Tensor]]:
    """Return the roots of the backward, and the received values that need a gradient."""
    torch.manual_seed(1)
    received = [x.clone().requires_grad_() if flag else x for x, flag in zip(case.inputs, case.received, strict=True)]
    with handle_saved_tensors(saved):
        result = case.module(*received)
    outputs: Sequence[Tensor] = result if isinstance(result, tuple) else (result,)
    return [out for out in outputs if out.requires_grad], [x for x in received if x.requires_grad]


def seeds(roots: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(root.shape, generator=generator) for root in roots]


def whole(case: Case) -> tuple[Gradients, Gradients]:
    case.module.zero_grad()
    roots, received = forward(case, ReleasableTensors(TRUSTED))
    torch.autograd.backward(roots, seeds(roots))
    return [x.grad for x in received], [p.grad for p in case.module.parameters()]


def halves(case: Case, *, trial: bool = False) -> tuple[Gradients, Gradients, WeightHalf]:
    case.module.zero_grad()
    saved = ReleasableTensors(lambda _: not trial)
    roots, received = forward(case, saved)
    half = input_half(roots, seeds(roots), received, saved, check=True)
    early: Gradients = [x.grad for x in received]
    if not half.whole:
        assert all(p.grad is None for p in case.module.parameters())
    half.run()
    return early, [p.grad for p in case.module.parameters()], half


def assert_equal(found: Gradients, expected: Gradients) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


@pytest.mark.parametrize("name", cases())
def test_halves_equal_the_whole(name: str) -> None:
    case = cases()[name]
    received, parameters = whole(case)
    for trial in (True, name == "a checkpoint"):
        early, late, half = halves(case, trial=trial)
        assert half.whole == ""
        assert half.saved_tensors is not None
        assert half.saved_tensors.mistaken == (name == "a checkpoint")
        assert_equal(early, received)
        assert_equal(late, parameters)


@pytest.mark.parametrize("name", whole_cases())
def test_a_graph_that_cannot_be_split_runs_whole_in_the_first_half(name: str) -> None:
    case = whole_cases()[name]
    received, parameters = whole(case)
    early, late, half = halves(case)
    assert half.whole.startswith(name.strip())
    assert_equal(early, received)
    assert_equal(late, parameters)


def test_hooks_fire_and_change_gradients_once() -> None:
    fired: list[str] = []

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            hidden.register_hook(lambda gradient: gradient * 2)
            return self.second(torch.relu(hidden))

    module = Hooked()
    module.first.weight.register_hook(lambda gradient: gradient * 3)
    module.second.register_full_backward_hook(lambda *_: fired.append("module"))
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    case = Case(module, (torch.randn(6, 8),))
    received, parameters = whole(case)
    expected = sorted(fired)
    fired.clear()
    early, late, _ = halves(case)
    assert sorted(fired) == expected == ["first.bias", "first.weight", "module", "second.bias", "second.weight"]
    assert_equal(early, received)
    assert_equal(late, parameters)


def test_tensors_that_only_the_input_half_reads_are_freed_after_it() -> None:
    rows, width, hidden = 16, 8, 32
    module = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
    saved = ReleasableTensors(TRUSTED)
    roots, received = forward(Case(module, (torch.randn(rows, width),)), saved)
    inputs, weights = 4 * rows * (width + hidden), 4 * 2 * width * hidden
    before_gelu = 4 * rows * hidden
    assert saved.nbytes == pytest.approx(inputs + before_gelu + weights, abs=4 * width * hidden)
    full = saved.nbytes
    half = input_half(roots, seeds(roots), received, saved, check=True)
    assert saved.nbytes == full - before_gelu
    half.run()
    assert saved.nbytes == 0


def test_the_first_half_frees_as_it_goes() -> None:
    """It held everything that was saved until its end, beside the gradients for the second half."""
    alive: list[int] = []
    module = nn.Sequential(nn.GELU(), nn.GELU(), nn.GELU())
    saved = ReleasableTensors(TRUSTED)
    x = torch.randn(16, 8, requires_grad=True)
    with handle_saved_tensors(saved):
        hidden = module[0](x.clone())
        hidden.register_hook(lambda gradient: alive.append(saved.nbytes))
        root = module[2](module[1](hidden))
    input_half([root], [torch.ones_like(root)], [x], saved, check=True)
    assert alive == [4 * 16 * 8 * 2]  # of three, the one that was read last and the one that is left


def test_the_second_half_holds_the_gradients_of_one_operation_at_a_time() -> None:
    """Gradients of all parameters were computed first, and then added to those that were there."""
    module = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
    saved = ReleasableTensors(TRUSTED)
    roots, received = forward(Case(module, (torch.randn(2, 64),)), saved)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    half, live = input_half(roots, seeds(roots), received, saved, check=True), LiveBytes()
    with live:
        half.run()
    assert live.peak <= 2 * 4 * 64 * 64


class CompiledFunction(torch.autograd.Function):
    """Saves and reads as a compiled region: the weight half needs one of two saved tensors, and what it was left."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.exp(), weight)
        return x.exp() @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, exp, weight = ctx.saved_tensors
        half, node = running_half(), current_backward_node()
        assert half is not None
        assert node is not None
        if half.kind == "weight":
            assert not x.numel()
            return None, exp.T @ ctx.left
        ctx.left = gradients[0].clone()
        half.spare(node, {memory_key(exp)})
        return x.exp() * (gradients[0] @ weight.T), None


def test_what_a_compiled_region_will_not_read_again_is_freed_when_it_has_run() -> None:
    """All that it had saved was held until its weight half, beside what its input half left, and the gradients."""
    x, weight = torch.randn(4, 8, requires_grad=True), nn.Parameter(torch.randn(8, 2))
    saved = ReleasableTensors(TRUSTED)
    with handle_saved_tensors(saved):
        root = cast("Tensor", CompiledFunction.apply(x.tanh(), weight))
    exp, gradient = x.detach().tanh().exp(), torch.randn(4, 2)
    half = input_half([root], [gradient], [x], saved, check=True)
    assert saved.nbytes == exp.nbytes
    (repeated,) = half.repeated
    assert repeated.gradients[0].untyped_storage().nbytes() == 4  # only its shape is needed
    half.run()
    assert saved.nbytes == 0
    assert weight.grad is not None
    assert x.grad is not None
    torch.testing.assert_close(weight.grad, exp.T @ gradient)
    torch.testing.assert_close(x.grad, exp * (gradient @ weight.T).detach() * (1 - x.detach().tanh() ** 2))


def test_a_split_that_misses_a_parameter_is_an_error() -> None:
    roots, received = forward(cases()["layers"], ReleasableTensors(TRUSTED))
    graph = autograd_graph([get_gradient_edge(root) for root in roots], [get_gradient_edge(received[0]).node])
    graph.check_complete()
    operation, leaving = next(iter(graph.parameter_edges().items()))
    rest = tuple(edge for edge in graph.children[operation] if edge not in leaving[:1])
    with pytest.raises(AssertionError, match="would leave out a parameter"):
        replace(graph, children=graph.children | {operation: rest}).check_complete()


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-auto"])
@pytest.mark.parametrize("cut", STAGES)
def test_zero_bubble_schedules_train_like_1f1b(cut: str, schedule: str) -> None:
    expected, found = losses_and_gradients(cut, "1f1b"), losses_and_gradients(cut, schedule)
    assert found["losses"] == expected["losses"]
    assert found["gradients"].keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        assert torch.equal(found["gradients"][name], gradient), name
    assert expected["backwards"] == {}
    # No stage waits for the input half of a source, so its backwards are whole.
    assert found["backwards"] == {"+".join(ops): "split" for ops, _, _ in STAGES[cut] if "stem" not in ops}


def test_ranks_equal_one_rank(tmp_path: Path) -> None:
    single: dict[str, Any] = losses_and_gradients("four", "zb-h1")
    for rank in values(run_ranks(losses_and_gradients, 4, tmp_path, "four", "zb-h1")):
        assert rank["losses"] == single["losses"]
        assert rank["backwards"].items() <= single["backwards"].items()
        for name, gradient in rank["gradients"].items():
            assert torch.equal(gradient, single["gradients"][name]), name


def test_a_stage_that_cannot_be_split_trains_and_warns_once() -> None:
    torch.manual_seed(0)
    twice = nn.Linear(8, 8)
    model = DagModule(
        {"a": nn.Linear(5, 8), "b": Wrap(lambda m, x: m.a(torch.tanh(m.a(x))), a=twice), "c": nn.Linear(8, 3)},
        inputs={"a": ["x"], "b": ["a"], "c": ["b"]},
    )
    (inputs, targets), gradients = fan_batch(), []
    for order in ("1f1b", "zb-h1"):
        stages = [(["a"], [0], 4), (["b"], [1], 4), (["c"], [2], 4)]
        example = {"x": inputs["x"]}
        plan = in_halves(plan_of(model, example, stages, 12, order), order)
        pipeline = Pipeline(plan, hand_split(model, plan, example), cross_entropy, options=PipelineOptions(debug=True))
        warned = pytest.warns(UserWarning, match=r"of stage 'b', which was done whole: several .* gp.choose_backwards")
        with warned if order == "zb-h1" else nullcontext():
            pipeline.step(example, targets)
        pipeline.step(example, targets)  # does not warn again
        gradients.append({name: cast("Tensor", each).clone() for name, each in pipeline.gradients().items()})
    assert pipeline.backwards() == {"b": "whole: several operations use one parameter", "c": "split"}
    for name, gradient in gradients[0].items():
        assert torch.equal(gradients[1][name], gradient), name


@pytest.mark.parametrize("checkpoints", [(False, True), (True, False)], ids=["later", "at first"])
def test_a_graph_that_changes_between_steps_is_tried_again(checkpoints: tuple[bool, bool]) -> None:
    # Once, all micro-batches released the tensors that the first one could release, even after the model had begun to
    # checkpoint its activations (Hugging Face's models do so only in training mode). The weight half then failed.
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.checkpoints = nn.Linear(8, 8), nn.Linear(8, 8), False

        def forward(self, x: Tensor) -> Tensor:
            inner = lambda y: torch.tanh(self.first(y))  # noqa: E731
            return self.second(checkpoint(inner, x, use_reentrant=False) if self.checkpoints else inner(x))

    torch.manual_seed(0)
    middle = Sometimes()
    model = DagModule(
        {"a": nn.Linear(5, 8), "b": middle, "c": nn.Linear(8, 3)}, inputs={"a": ["x"], "b": ["a"], "c": ["b"]}
    )
    inputs, targets = fan_batch()
    stages: list[StageLine] = [(["a"], [0], 4), (["b"], [1], 4), (["c"], [2], 4)]
    found: list[list[Tensor]] = []
    for order in ("1f1b", "zb-h1"):
        plan = in_halves(plan_of(model, {"x": inputs["x"]}, stages, 12, order), order)
        pipeline = Pipeline(
            plan, hand_split(model, plan, {"x": inputs["x"]}), cross_entropy, options=PipelineOptions(debug=True)
        )
        gradients: list[Tensor] = []
        for middle.checkpoints in checkpoints:
            pipeline.step({"x": inputs["x"]}, targets)
            gradients += [each.clone() for each in pipeline.gradients().values() if each is not None]
        found.append(gradients)
    assert pipeline.backwards() == {"b": "split", "c": "split"}
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_plan_names_its_whole_backwards_and_runs_them_whole() -> None:
    torch.manual_seed(0)
    model = DagModule(
        {
            "a": nn.Linear(5, 8),
            "b": Wrap(lambda m, x: m.a(torch.tanh(m.a(x))), a=nn.Linear(8, 8)),
            "c": Wrap(lambda m, x: m.a(Scale.apply(x, m.w)), a=nn.Linear(8, 8), w=nn.Parameter(torch.ones(8))),
            "d": nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
        },
        inputs={"a": ["x"], "b": ["a"], "c": ["b"], "d": ["c"]},
    )
    inputs, targets = fan_batch()
    example = {"x": inputs["x"]}
    stages = [([name], [number], 4) for number, name in enumerate("abcd")]
    asked = in_halves(captured_plan(model, example, stages, 12), "zb-h1")
    chosen = choose_backwards(asked, model)
    assert [stage.backward for stage in chosen.stages] == ["auto", "whole", "whole", "auto"]
    assert build_schedule(asked).split_stages == {1, 2, 3}
    assert build_schedule(chosen).split_stages == {3}
    assert chosen.prediction is not None
    found, gradients = [], []
    for plan in (asked, chosen):
        pipeline = Pipeline(plan, model, cross_entropy, options=PipelineOptions(debug=True))
        with pytest.warns(UserWarning, match="done whole") if plan is asked else nullcontext():
            pipeline.step(example, targets)
        found.append(pipeline.backwards())
        gradients.append({name: cast("Tensor", each).clone() for name, each in pipeline.gradients().items()})
    reasons = {asked.stages[stage].name: why for stage, why in whole_backwards(asked, model).items()}
    assert found == [{name: f"whole: {why}" for name, why in reasons.items()} | {"d": "split"}, {"d": "split"}]
    for name, gradient in gradients[0].items():
        assert torch.equal(gradients[1][name], gradient), name
    assert choose_backwards(replace(asked, schedule="1f1b"), model).schedule == "1f1b"
    with pytest.raises(InvalidInput, match=r"lists I1.0, but the plan requires whole backwards of stage 'b'"):
        verify(chosen, replace(build_schedule(asked)))
    table = plan_table(chosen, chosen.prediction)
    assert [row[-1] for row in table.rows] == ["whole", "whole", "whole", "in halves"]


def test_a_step_after_a_failed_step_starts_clean() -> None:
    def broken(output: Tensor, targets: Tensor) -> Tensor:
        raise KeyError("labels")

    pipeline = fan_pipeline("four", "zb-h1", dropout=0.0)
    expected = pipeline.step(*fan_batch())
    healthy, pipeline._parts.training.loss_fn = pipeline._parts.training.loss_fn, broken
    with pytest.raises(KeyError, match="labels"):
        pipeline.step(*fan_batch())
    pipeline._parts.training.loss_fn = healthy
    assert pipeline.step(*fan_batch()) == expected
