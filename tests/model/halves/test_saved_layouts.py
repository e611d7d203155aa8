"""Saved tensors arrive elsewhere with their values and strides."""

import pytest
import torch
from torch import Tensor

from graphpipe.model.halves.saved_layouts import Layout, saved_layouts

BASE = torch.arange(24.0)
TENSORS: dict[str, Tensor] = {
    "contiguous": BASE.view(4, 6),
    "transposed": BASE.view(4, 6).t(),
    "permuted": BASE.view(2, 3, 4).permute(2, 0, 1),
    "slice": BASE.view(4, 6)[:, 1:4],
    "every other": BASE[::2],
    "expanded": BASE[:4].view(4, 1).expand(4, 5),
    "expanded in front": BASE[:4].expand(3, 4),
    "scalar": BASE[3],
    "empty": BASE[:0].view(0, 3),
    "one row": BASE[:6].view(1, 6).t(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_with_its_strides(name: str) -> None:
    tensor = TENSORS[name]
    layout = Layout.of(tensor)
    dense, buffer = layout.dense(tensor), layout.buffer(torch.device("cpu"))
    assert dense.is_contiguous()
    assert dense.nbytes == layout.nbytes
    buffer.copy_(dense)
    back = layout.laid_out(buffer)
    assert torch.equal(back, tensor)
    assert back.stride() == tensor.stride()
    assert "expanded" not in name or dense.numel() == 4


def test_repeated_tensors_and_parts_of_parameters_are_found() -> None:
    weight = torch.nn.Parameter(torch.zeros(4, 6))
    found = saved_layouts([BASE, weight.detach().t(), BASE, weight.detach()[2], BASE[1:]], [weight])
    assert [each.same_as for each in found] == [None, None, 0, None, None]
    assert [each.parameter for each in found] == [None, (0, 0), None, (0, 12), None]
