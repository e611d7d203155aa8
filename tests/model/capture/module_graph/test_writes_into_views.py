"""Attentions that write into views of tensors, as those of torchvision's SwinV2: capturing 12 of them took 34 s."""

import pytest
import torch
from stage_runs import assert_same, make_plan, run_stages
from torch import Tensor, nn

from graphpipe.model.capture.capture import capture
from graphpipe.model.split.split import split


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
        self.qkv = nn.Linear(6, 18)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.qkv.bias.clone()
        bias[6:12].zero_()
        q, k, v = nn.functional.linear(x, self.qkv.weight, bias).chunk(3, -1)
        weights = q @ k.transpose(1, 2) * self.scale(x.new_ones(1, 1))
        return weights.softmax(-1) @ v


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = Attention(), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.attention(x))


def blocks(count: int) -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(count)))


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 4])
def test_many_blocks_that_write_into_views_stay_whole(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    traced: list[object] = []
    plain = torch.export.ExportedProgram.run_decompositions

    def counted(program: torch.export.ExportedProgram, *args: object) -> torch.export.ExportedProgram:
        traced.append(program)
        return plain(program, *args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    torch.manual_seed(0)
    module, x = blocks(count), torch.randn(8, 5, 6)
    graph = capture(module, x)
    assert len(traced) == (1 if count == 3 else 0)
    assert graph.origin is not None
    assert len(graph.origin.opaque) == (0 if count == 3 else 4)
    plan = make_plan(graph, [[op.name] for op in graph.ops])
    assert_same(module(x), run_stages(split(module, plan), plan, {"input": x}))
    looked_into = capture(module, x, split=[f"{at}.attention" for at in range(count)])
    assert looked_into.origin is not None
    assert not looked_into.origin.opaque
