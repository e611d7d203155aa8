"""A smaller mini-batch is trained by a plan for larger ones: repeated rows do not count."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.integrations.filled_batch import LossOfRealRows, fill
from graphpipe.integrations.gradient_pipeline import fills
from graphpipe.model import DagModule
from graphpipe.model.capture.capture import capture
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.run.stage.tensor_tree import map_tensors


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_shares_of_micro_batches_add_up_to_the_mean_of_the_real_rows(
    size: int, parts: int, data: st.DataObject
) -> None:
    samples = size * parts
    count = data.draw(st.integers(1, samples))
    inputs = {"x": torch.arange(3.0 * count).reshape(count, 3)}
    targets = {"y": (torch.ones(count, 3), [torch.arange(count)])}
    filled, wrapped = fill(inputs, targets, samples)
    assert torch.equal(filled["x"][:count], inputs["x"])
    assert all(torch.equal(row, inputs["x"][0]) for row in filled["x"][count:])
    output = filled["x"].double().requires_grad_()

    def loss(outputs: Tensor, given: dict[str, tuple[Tensor, list[Tensor]]]) -> Tensor:
        y, (numbers,) = given["y"]
        assert len(outputs) == len(y) == len(numbers)
        return mse_loss(outputs, y.double())

    total = torch.zeros((), dtype=torch.float64)
    for start in range(0, samples, size):
        rows = slice(start, start + size)
        part = LossOfRealRows(loss)(output[rows], map_tensors(wrapped, lambda each, rows=rows: each[rows]))
        total = total + part * size / samples
    expected = mse_loss(inputs["x"].double(), targets["y"][0].double())
    assert total.item() == pytest.approx(expected.item())
    total.backward()
    assert output.grad is not None
    assert not output.grad[count:].any()


def test_a_whole_mini_batch_is_the_loss_functions_own() -> None:
    x, y = torch.rand(4, 2), {"y": torch.rand(4, 2)}
    assert LossOfRealRows(lambda output, given: mse_loss(output, given["y"]))(x, y) == mse_loss(x, y["y"])


def test_rows_are_repeated_only_where_micro_batches_do_not_divide_the_samples() -> None:
    class Head(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x.T

    for whole in (False, True):
        head = Head() if whole else nn.Linear(4, 4)
        parts = {"tower": nn.Linear(4, 4), "head": head}
        mixing = ["head"] if whole else []
        model = DagModule(parts, inputs={"tower": ["x"], "head": ["tower"]}, whole_batch=mixing)
        graph, cluster = capture(model, {"x": torch.rand(8, 4)}), Cluster.preset("local:2")
        stages = [
            HandStage(name="a", ops=("tower",), devices=(0,), micro_batch=4),
            HandStage(name="b", ops=("head",), devices=(1,), micro_batch=8 if whole else 4),
        ]
        plan = hand_plan(graph, estimate(graph, cluster), cluster, batch_size=8, stages=stages)
        assert not fills(plan, 8)
        assert not fills(plan, 4)
        with pytest.raises(InvalidInput, match="has 9 samples"):
            fills(plan, 9)
        if not whole:
            assert fills(plan, 6)
            continue
        with pytest.raises(InvalidInput, match=r"has 6 samples.*'head' compares samples\. Drop the last"):
            fills(plan, 6)
