"""Convolutions that compute from a stride in a buffer how much to pad, as those of audio codecs do.

EnCodec was refused: its buffers had no values while it was captured, so the padding seemed to depend on values.
"""

import pytest
import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.run import Pipeline

KERNEL = 4


class Strided(nn.Module):
    """Pads so that the last frame is complete."""

    stride: Tensor

    def __init__(self, stride: int, *, saved: bool, deep: bool) -> None:
        super().__init__()
        conv = nn.Conv1d(3, 3, KERNEL, stride)
        self.conv = nn.Sequential(nn.Sequential(conv)) if deep else conv  # a block with deep children is looked into
        self.register_buffer("stride", torch.tensor(stride), persistent=saved)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        frames = torch.ceil((length - KERNEL) / self.stride).long()
        return self.conv(nn.functional.pad(x, (0, int(frames * self.stride + KERNEL - length))))


def codec(*, saved: bool = False, deep: bool = True) -> nn.Sequential:
    """Return two such convolutions, which differ only in their strides."""
    torch.manual_seed(0)
    return nn.Sequential(Strided(2, saved=saved, deep=deep), Strided(3, saved=saved, deep=deep)).double()


@pytest.mark.parametrize("deep", [True, False])
def test_a_stride_that_is_in_no_checkpoint_keeps_its_value(deep: bool) -> None:
    model, x = codec(deep=deep), torch.randn(4, 3, 31, dtype=torch.float64)
    expected = model(x)
    expected.square().mean().backward()
    wanted = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    graph = capture(model, x)
    assert len(graph.ops) == 2
    assert {op.name: op for op in graph.ops}[graph.order[-1]].output_bytes_per_sample == 8 * expected[0].numel()
    cluster = Cluster.preset("local:2")
    stages = [HandStage(ops=(op,), devices=(number,), micro_batch=2) for number, op in enumerate(graph.order)]
    plan = hand_plan(graph, estimate(graph, cluster), cluster, batch_size=4, stages=stages)
    with Pipeline(plan, model, lambda output, _: output.square().mean()) as pipeline:
        assert pipeline.step(x, None) == pytest.approx(expected.square().mean().item())
        found = pipeline.gradients()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


def test_a_number_in_a_checkpoint_may_change_and_is_not_read() -> None:
    with pytest.raises(InvalidInput, match="decides by the values in a tensor"):
        capture(codec(saved=True), torch.randn(4, 3, 31, dtype=torch.float64))
