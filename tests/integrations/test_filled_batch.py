"""A smaller mini-batch is trained by a plan for larger ones: repeated rows do not count."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import mse_loss

from graphpipe.integrations.filled_batch import LossOfRealRows, fill
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
