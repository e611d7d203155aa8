"""Gradients on other devices than their forwards: bit for bit those of a reference, and of stages on one device."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from latin_square import latin_square
from run_ranks import run_ranks, values
from run_rounds import (
    Weights,
    rounds_of,
    rounds_on,
    train_layers,
    train_rounds,
    train_rounds_cases,
    train_rounds_reference,
)
from run_splits import Wrap
from run_versions import BATCH, OPTIMIZERS, batch_of, loss_fn, model_of, train_segments
from torch import Tensor, nn

from graphpipe.errors import InvalidInput, NonFiniteLoss
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.rounds.layer_plan import layer_plan
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.verify_rounds import verify_rounds


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == expected["losses"]
    for name, weight in expected["weights"].items():
        assert torch.equal(found["weights"][name], weight), name


@pytest.mark.parametrize(
    ("kind", "optimizer", "weights"), latin_square(["chain", "diamond", "deep"], OPTIMIZERS, ["flush", "stash"])
)
def test_one_process_equals_the_reference(kind: str, optimizer: str, weights: Weights) -> None:
    seed = [*OPTIMIZERS].index(optimizer)
    found = train_rounds(kind, 3, weights, optimizer, seed)
    assert_same(found, train_rounds_reference(kind, 3, weights, optimizer, seed))


CASES: dict[int, list[tuple[str, int, Weights, str, int]]] = {
    2: [("chain", 2, "flush", "adam", 0), ("diamond", 2, "stash", "sgd", 2), ("deep", 2, "stash", "adamw", 4)],
    4: [("chain", 4, "stash", "adamw", 1), ("diamond", 4, "flush", "adamw", 3), ("diamond", 4, "stash", "adam", 5)],
}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_equal_the_reference(ranks: int, tmp_path: Path) -> None:
    outcomes = values(run_ranks(train_rounds_cases, ranks, tmp_path / "ranks", CASES[ranks]))
    for number, case in enumerate(CASES[ranks]):
        expected = train_rounds_reference(*case)
        for outcome in outcomes:
            assert_same(outcome[number], expected)


def test_with_a_flush_they_are_those_of_split_backwards_on_one_device() -> None:
    assert_same(train_rounds("chain", 3, "flush"), train_segments("chain", "flush", schedule="zb-h1"))


@pytest.mark.parametrize("kind", ["norm", "dropout"])
def test_buffers_and_random_numbers_are_those_of_stages(kind: str) -> None:
    """A backward is recorded from zeros. That must not change the statistics of a norm."""
    assert_same(train_rounds(kind, 3, "flush"), train_layers(kind, 3))


NOT_IN_THE_GRAPH = {
    LayerTask("F", 0): 4 * 5 * 4,  # the input of the model
    LayerTask("F", 3): 4 * 3 * 4 + 4 * 8 + 4,  # what the loss keeps: logarithms, targets and the sum of weights
    LayerTask("I", 3): 4 * 3 * 4,  # the gradient of the model's output
}
"""Bytes of a micro-batch that plans do not count."""


def test_a_run_does_the_tasks_of_its_rounds_and_sends_no_more_than_planned() -> None:
    rounds, model = rounds_of("deep", 3, "stash", seed=1), model_of("deep")
    verify_rounds(rounds)
    with Pipeline(rounds, model, loss_fn, OPTIMIZERS["sgd"], options=PipelineOptions(record=True)) as pipeline:
        pipeline.segment([batch_of(step) for step in range(4)])
        trace = pipeline.trace()
        sent = pipeline._parts.training.sent_bytes  # pyright: ignore[reportAttributeAccessIssue]
    for device, order in rounds.orders.items():
        spans = [span for span in trace.spans if span.device == device and span.kind in "FIW"]
        done = [(LayerTask(span.kind, span.stage), span.micro_batch) for span in spans]  # pyright: ignore[reportArgumentType]
        number = {each: rounds.round_of(*each) for each in done}
        assert done == sorted(done, key=lambda each: (number[each], order.index(each[0])))
        assert len(done) == len(order) * 4 * 2
    assert {key for key, count in sent.items() if count} <= rounds.messages.keys()
    for (source, target, task), count in sent.items():
        times = 4 if task.kind == "W" else 8
        assert count <= times * (rounds.messages[source, target, task] + NOT_IN_THE_GRAPH.get(task, 0)), task


def test_a_segment_that_fails_changes_nothing() -> None:
    model = model_of("chain")
    inputs, targets = batch_of(2)
    bad = {"x": inputs["x"].clone().fill_(float("inf"))}
    with Pipeline(rounds_of("chain", 3, "stash"), model, loss_fn, OPTIMIZERS["adam"]) as pipeline:
        pipeline.segment([batch_of(0), batch_of(1)])
        before = {name: each.clone() for name, each in model.state_dict().items()}
        with pytest.raises(NonFiniteLoss, match="The weights are those before"):
            pipeline.segment([batch_of(3), (bad, targets), batch_of(4)])
        for name, each in model.state_dict().items():
            assert torch.equal(each, before[name]), name
        again = pipeline.segment([batch_of(2), batch_of(3)])
    with Pipeline(rounds_of("chain", 3, "stash"), model_of("chain"), loss_fn, OPTIMIZERS["adam"]) as pipeline:
        pipeline.segment([batch_of(0), batch_of(1)])
        assert pipeline.segment([batch_of(2), batch_of(3)]) == again


def test_labels_that_do_not_count_are_left_out_of_gradients_too() -> None:
    # A number of the first micro-batch, its share of the labels, once scaled the gradients of all.
    ignores, weights = nn.CrossEntropyLoss(ignore_index=1), list[dict[str, Tensor]]()
    rounds = rounds_of("chain", 3, "flush")
    for trained in (rounds, layer_plan(rounds)):
        model = model_of("chain")
        with Pipeline(trained, model, ignores, OPTIMIZERS["sgd"]) as pipeline:
            pipeline.step(*batch_of(0))
            pipeline.sync_model()
        weights.append(model.state_dict())
    for name, weight in weights[1].items():
        torch.testing.assert_close(weights[0][name], weight, msg=name)


def test_a_number_that_changes_from_step_to_step_is_refused() -> None:
    # The backward was compared in the first micro-batch only, and kept that number for the whole training.
    factor = [1.0]
    with Pipeline(rounds_of("chain", 3, "flush"), model_of("chain"), lambda *x: loss_fn(*x) * factor[0]) as pipeline:
        pipeline.step(*batch_of(0))
        factor[0] = 0.5
        with pytest.raises(InvalidInput, match=r"a number that changes.* \(MulBackward0 returns another gradient\)"):
            pipeline.step(*batch_of(1))


def summed(module: Any, x: Tensor) -> Tensor:
    return module.layer(x.sum(1, keepdim=True))


SECOND: dict[str, Callable[[], nn.Module]] = {
    # It has no weight gradients, so nobody makes the later versions that its forward once waited for.
    "frozen": lambda: nn.Linear(6, 6).requires_grad_(False),
    # The gradient that it returns is no contiguous tensor, which the weight half before it once refused.
    "summed": lambda: Wrap(summed, layer=nn.Linear(1, 6)),
}


@pytest.mark.parametrize("second", SECOND)
def test_rounds_on_one_device_train_as_plain_pytorch(second: str) -> None:
    plain = chain_of(SECOND[second]())
    rounds, model = rounds_on(deepcopy(plain), ["0", "1", "2"], [0, 0, 0], [0, 0, 0])  # nothing is late
    batches = [(inputs["x"], targets) for inputs, targets in map(batch_of, range(3))]
    with Pipeline(rounds, model, loss_fn, lambda each: torch.optim.SGD(each, lr=0.1)) as pipeline:
        losses = pipeline.segment(batches)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for (x, targets), found in zip(batches, losses, strict=True):
        optimizer.zero_grad()
        loss = loss_fn(plain(x), targets)
        loss.backward()
        optimizer.step()
        assert found == pytest.approx(loss.item(), rel=1e-6)


class Scaled(torch.autograd.Function):
    """Keeps a number beside tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def chain_of(second: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), second, nn.Linear(6, 3))


def drawn(module: Any, x: Tensor) -> Tensor:
    return module.layer(x) * torch.rand(()).item()


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "function": (lambda: Wrap(lambda m, x: Scaled.apply(m.layer(x), 2.0), layer=nn.Linear(6, 6)), "Scaled"),
    "number": (lambda: Wrap(drawn, layer=nn.Linear(6, 6)), "a number that changes.*MulBackward0"),
    "checkpoint": (lambda: model_of("checkpointed").get_submodule("b"), "computed again"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_keeps_more_than_tensors_is_refused_by_name(name: str) -> None:
    make, words = REFUSED[name]
    rounds, model = rounds_on(chain_of(make()), ["0", "1", "2"], [0, 1, 0], [1, 0, 1])
    with (
        Pipeline(rounds, model, loss_fn, OPTIMIZERS["sgd"], options=PipelineOptions()) as pipeline,
        pytest.raises(InvalidInput, match=rf"layer 's1': .*{words}"),
    ):
        pipeline.segment([(batch_of(0)[0]["x"], batch_of(0)[1])])


def test_a_parameter_that_layers_share_is_refused_by_name() -> None:
    first = nn.Linear(5, 5)
    second = nn.Linear(5, 5)
    second.weight = first.weight
    rounds, model = rounds_on(nn.Sequential(first, second, nn.Linear(5, 3)), ["0", "1", "2"], [0, 1, 0], [1, 0, 1])
    with pytest.raises(
        InvalidInput, match=r"'0\.weight': layers 's0' and 's1' share it, and gradients are computed apart"
    ):
        Pipeline(rounds, model, loss_fn, OPTIMIZERS["sgd"])


@pytest.mark.parametrize(
    ("options", "name"),
    [({"compile": True}, "compile"), ({"precision": "fp16"}, "precision"), ({"clip_norm": 1.0}, "clip_norm")],
)
def test_options_that_need_stages_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name}: .*and gradients are computed apart"):
        train_rounds("chain", 3, "stash", **options)


def test_a_smaller_mini_batch_is_refused() -> None:
    inputs, targets = batch_of(0)
    with (
        Pipeline(rounds_of("chain", 3, "flush"), model_of("chain"), loss_fn) as pipeline,
        pytest.raises(InvalidInput, match=f"has 4 samples, and gradients are placed for {BATCH}"),
    ):
        pipeline.step({"x": inputs["x"][:4]}, targets[:4])
