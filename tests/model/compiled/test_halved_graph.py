"""The two graphs of a halved backward compute together what the whole one computes."""

from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from graphpipe.model.compiled.halved_graph import halve


def layers(x: Tensor, up: Tensor, down: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The backward of (x @ up).relu() @ down for (x, up, down)."""
    product = x @ up
    inner = (gradient @ down.T) * (product > 0)
    return inner @ up.T, x.T @ inner, product.relu().T @ gradient


def passed_on(x: Tensor, up: Tensor, down: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Some gradients are arguments, are the same, or are none."""
    return gradient, gradient, None


def parts(x: Tensor, up: Tensor, down: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Both halves read the results of one operation."""
    values, places = gradient.max(1)
    return values[:, None] + x, places.to(x.dtype) @ x @ up, values @ x


BACKWARDS = (layers, passed_on, parts)


@pytest.mark.parametrize("backward", BACKWARDS)
@pytest.mark.parametrize("parameters", [(), (1,), (1, 2), (0, 1, 2)], ids=str)
def test_together_they_are_the_whole(backward: Callable[..., Any], parameters: Collection[int]) -> None:
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in ((4, 4), (4, 5), (5, 6), (4, 6))]
    module = fx.symbolic_trace(backward)
    graph = halve(module, parameters)
    now = graph.input_half(*given)
    first, kept = now[:3], now[3:]
    later = graph.weight_half(*kept, *(given[place] for place in graph.reads))
    assert len(kept) == graph.kept
    for place, whole in enumerate(module(*given)):
        found, other = (later, first) if place in parameters else (first, later)
        assert other[place] is None
        assert found[place] is whole is None or torch.equal(found[place], whole)


def calls(module: fx.GraphModule) -> int:
    return sum(node.op.startswith("call") for node in module.graph.nodes)


def test_nothing_is_computed_twice() -> None:
    whole = fx.symbolic_trace(layers)
    graph = halve(whole, (1, 2))
    assert calls(graph.input_half) + calls(graph.weight_half) == calls(whole)
    assert graph.kept == 2, "the product, and the gradient of what relu returns"
    assert graph.reads == (0, 3)


def test_the_weight_half_gets_the_sizes_that_shapes_are_made_of() -> None:
    """Whisper's decoder layers of texts of any length were not compiled: a kept tensor had twice an unknown length."""

    def backward(size: int, x: Tensor, up: Tensor) -> tuple[Tensor | None, ...]:
        flat = x.view(2 * size, 4)
        return None, (flat @ up.T).view(2, size, 4), flat.T @ flat

    given = (torch.randn(2, 5, 4), torch.randn(4, 4))
    module: Any = make_fx(backward, tracing_mode="symbolic")(5, *given)
    graph = halve(module, (2,))
    *first, kept = graph.input_half(5, *given)
    assert graph.reads == (0,)
    assert kept.shape == (10, 4)
    _, _, later = graph.weight_half(kept, 5)
    for found, wanted in zip((*first[:2], later), backward(5, *given), strict=True):
        assert found is wanted is None or (wanted is not None and torch.equal(found, wanted))
