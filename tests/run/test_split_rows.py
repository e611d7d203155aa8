"""Tables that are split by rows train as whole tables do: on one rank and on two, from checkpoints of any plan."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from run_plans import plan_for
from run_ranks import run_ranks, values
from run_split_layers import adam
from run_split_rows import BATCH, ROWS, batch, model_of, plan_of, resume, train, train_plainly
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.errors import InvalidInput
from graphpipe.graph import ParameterSlice, split_ops
from graphpipe.model.capture.capture import capture, capture_nodes
from graphpipe.model.split.split import split
from graphpipe.run import Pipeline

SLICES = {
    *("wide.weight[0:300]", "wide.weight[300:600]", "wide.weight[600:900]"),
    *("bag.weight[0:450]", "bag.weight[450:900]"),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the training of the split model in one stage."""
    return train("one", str(tmp_path_factory.mktemp("one")))


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """Return the training in plain PyTorch."""
    return train_plainly()


def assert_close(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(wanted["losses"][-len(found["losses"]) :], rel=1e-6)
    for name, tensor in wanted["state"].items():
        torch.testing.assert_close(found["state"][name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def test_gradients_are_those_of_the_whole_tables(alone: dict[str, Any], plain: dict[str, Any]) -> None:
    assert_close(alone, plain)
    assert alone["gradients"].keys() == {*SLICES, "deep.weight", "deep.bias"}
    for name, gradient in alone["gradients"].items():
        piece = ParameterSlice.parse(name)
        wanted = plain["gradients"][piece.parameter if piece else name]
        part = wanted[piece.start : piece.stop] if piece else wanted
        assert (gradient - part).abs().max() <= 1e-6 * wanted.abs().max(), name


def test_two_ranks_equal_one_bit_for_bit_and_save_their_rows(tmp_path: Path, alone: dict[str, Any]) -> None:
    folder = tmp_path / "folder"
    for rank in values(run_ranks(train, 2, tmp_path, "two", str(folder))):
        assert rank["losses"] == alone["losses"]
        for name, tensor in alone["state"].items():
            assert torch.equal(rank["state"][name], tensor), name
    (checkpoint,) = folder.glob("step-*")
    held = [{name for name in load_file(path) if "[" in name} for path in sorted(checkpoint.glob("model*"))]
    assert held == [
        {"wide.weight[0:300]", "wide.weight[300:600]", "bag.weight[0:450]"},
        {"wide.weight[600:900]", "bag.weight[450:900]"},
    ]


@pytest.mark.parametrize(
    ("saved", "loaded"), [("one", "whole"), ("whole", "one"), ("one", "others"), ("others", "one")]
)
def test_a_checkpoint_loads_under_any_plan(saved: str, loaded: str, tmp_path: Path, plain: dict[str, Any]) -> None:
    train(saved, str(tmp_path))
    assert_close(resume(loaded, str(tmp_path)), plain)


def test_a_hook_that_was_added_after_planning_is_refused_by_name() -> None:
    model = model_of()
    model.wide.register_forward_hook(lambda *_: None)
    with pytest.raises(InvalidInput, match=r"the plan splits 'wide', which has a hook"):
        Pipeline(plan_of("one"), model, functional.mse_loss)


def test_a_table_that_changed_after_planning_is_refused_by_name() -> None:
    model = model_of()
    model.wide.scale_grad_by_freq = True
    with pytest.raises(InvalidInput, match=r"the plan splits 'wide', which cannot be split in that way in this model"):
        Pipeline(plan_of("one"), model, functional.mse_loss)


class Masked(nn.Module):
    """Leaves out the zeros of a list, with the same list: (n, 3) int64 -> (n, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 1)

    def forward(self, fields: Tensor) -> Tensor:
        return (self.table(fields) * (fields > 99)[..., None]).sum(1)


class Hashed(nn.Module):
    """Looks up what another layer computes, which is also an output: (n, 3) int64 -> (n, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.table, self.end = nn.Linear(3, 3), nn.Embedding(ROWS, 2), nn.Linear(2, 1)

    def forward(self, fields: Tensor) -> Tensor:
        values = torch.tanh(self.before(fields / 300))
        return self.end(self.table((values.abs() * 399).long() + 5).sum(1)) + values.sum(1, keepdim=True)


@pytest.mark.parametrize("model", [Masked(), Hashed()], ids=["masked", "hashed"])
def test_indices_are_computed_in_every_part_that_needs_them(model: nn.Module) -> None:
    inputs, targets = batch(0)
    twin = copy.deepcopy(model)
    output = twin(inputs)
    functional.mse_loss(output, targets).backward()
    graph = split_ops(capture(model, inputs), ["table:rows3"])
    plan = plan_for(graph, [([op], [rank], 4) for rank, op in enumerate(graph.order)], BATCH)
    with Pipeline(plan, model, functional.mse_loss, adam) as pipeline:
        torch.testing.assert_close(pipeline.evaluate(inputs)[1], output, rtol=1e-6, atol=1e-7)
        pipeline.step(inputs, targets)
        found = pipeline.gradients()
    wanted = twin.get_parameter("table.weight").grad
    slices = [found[f"table.weight[{start}:{start + 300}]"] for start in (0, 300, 600)]
    assert wanted is not None
    assert (torch.cat([each for each in slices if each is not None]) - wanted).abs().max() <= 1e-6 * wanted.abs().max()


def test_a_share_of_the_bytes_that_has_no_exact_number_is_not_another_model() -> None:
    """A third of 40,000 bytes was refused: "13336 bytes of parameters in the plan, 13336.0 here"."""
    model, inputs = nn.Sequential(nn.Embedding(10_000, 1), nn.Flatten(), nn.Linear(3, 1)), batch(0)[0]
    captured = capture_nodes(model, inputs)
    graph = split_ops(captured.graph, ["0:rows3"])
    assert graph["0.part2"].parameter_bytes not in (13332.0, 13336.0)
    assert len(split(model, plan_for(graph, [([*graph.order], [0], 4)], BATCH), captured)) == 1
