"""The dtypes on the edges under autocast are those of a real run."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs import estimate
from graphpipe.graph import Precision
from graphpipe.model.autocast import DTYPES
from graphpipe.model.capture.capture import capture
from graphpipe.model.split.autocast_specs import autocast_specs
from graphpipe.model.split.split import split
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan


class Halves(nn.Module):
    """Returns the result of a linear layer, its softmax, and which elements are positive."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Mapping[str, Tensor]:
        product = self.linear(x)
        return {"product": product, "weights": product.softmax(1), "large": product > 0}


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Halves()
        self.mid = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return self.last(self.mid(first["product"]) * first["weights"] * first["large"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_dtypes_and_bytes_are_those_of_a_real_run(precision: Precision) -> None:
    dtype = DTYPES[precision]
    torch.manual_seed(0)
    model, x = Root(), {"x": torch.randn(4, 4)}
    graph, cluster = capture(model, x, opaque=["first"], precision=precision), Cluster.resolve("local:2")
    ops = tuple(op.name for op in graph.ops)
    cut = next(place for place, name in enumerate(ops) if name != "first")
    stages = [HandStage(ops=names, devices=(at,), micro_batch=4) for at, names in enumerate((ops[:cut], ops[cut:]))]
    plan = hand_plan(graph, estimate(graph, cluster), cluster, batch_size=4, stages=stages)
    programs = split(model, plan)
    specs, outputs = autocast_specs(programs, graph.inputs, torch.device("cpu"), dtype)
    values: dict[str, Tensor] = dict(x)
    with torch.autocast("cpu", dtype=dtype):
        sent, _ = programs[0](values)
        expected = model(**x)
        _, output = programs[1](values | sent)
    assert isinstance(output, Tensor)
    assert output.dtype == dtype
    assert torch.equal(output, expected)
    assert outputs == (dtype,)
    found = {spec.name: spec for spec in specs[0]}
    assert {name: spec.dtype for name, spec in found.items()} == {name: sent[name].dtype for name in found}
    assert {torch.bool, dtype} <= {spec.dtype for spec in found.values()}
    assert sum(spec.bytes_per_sample for spec in specs[0]) == plan.edges[0].bytes_per_sample
    before = {spec.name: spec for spec in programs[0].sends[0]}
    for name, spec in found.items():
        assert (spec.sample_shape, spec.requires_grad) == (before[name].sample_shape, before[name].requires_grad)
