"""Torch's compiler still behaves as graphpipe uses it."""

from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import TensorifyScalarRestartAnalysis

from graphpipe.model.backends.inductor import INDUCTOR
from graphpipe.model.compiled.halved_backward import HalvedBackward
from graphpipe.model.compiled.torch_compiler import region_compiler, set_compiled_call
from graphpipe.model.split.autograd_graph import COMPILED_BACKWARD
from graphpipe.model.torch_private import compiled_form


@pytest.mark.slow
@pytest.mark.skipif(bool(INDUCTOR.missing()), reason=INDUCTOR.missing() or "there is a compiler")
def test_a_compiled_region_has_ones_own_backward_which_runs_again_in_any_thread() -> None:
    """Torch's setting that lets it run again is one of a thread, and GPUs have a thread of their own."""
    layer, x, compiled = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True), list[object]()

    def backward(graph: fx.GraphModule, compile_graph: Any, tensors: Sequence[int]) -> Any:
        assert sorted(tensors) == [0, 1, 2]
        return compile_graph(graph)

    set_compiled_call(layer, region_compiler(backward, lambda: compiled.append("layer"), compiled.append)(layer))
    assert compiled_form(layer) == "in place"
    out = layer(x)
    assert out.grad_fn is not None
    assert out.grad_fn.name() == COMPILED_BACKWARD
    found: list[Tensor] = []
    for _ in range(2):
        thread = Thread(target=lambda: found.extend(torch.autograd.grad(out.sum(), [x], retain_graph=True)))
        thread.start()
        thread.join()
    set_compiled_call(layer, None)
    assert compiled_form(layer) == ""
    (expected,) = torch.autograd.grad(layer(x).sum(), [x])
    assert [torch.allclose(each, expected) for each in found] == [True, True]
    assert compiled == ["layer"]


@pytest.mark.skipif(bool(INDUCTOR.missing()), reason=INDUCTOR.missing() or "there is a compiler")
def test_what_the_compiler_cannot_do_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error inside the compiler, at a layer of DenseNet with lengths of any size, ended a training."""
    layer, x, failed = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True), list[Exception]()
    (expected,) = torch.autograd.grad(layer(x).sum(), [x])

    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug of the compiler")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", broken)
    set_compiled_call(layer, region_compiler(HalvedBackward, lambda: None, failed.append)(layer))
    (found,) = torch.autograd.grad(layer(x).sum(), [x])
    assert torch.equal(found, expected)
    assert [type(error) for error in failed] == [ValueError]


@pytest.mark.skipif(bool(INDUCTOR.missing()), reason=INDUCTOR.missing() or "there is a compiler")
def test_a_compiler_that_begins_again_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of Qwen3-MoE ran eagerly: the compiler raises if it wants to trace a region again, with numbers fixed."""
    from torch._inductor.compile_fx import compile_fx_inner  # seconds, which other workers of the tests need not spend

    layer, x, failed, times = nn.Linear(3, 3), torch.randn(2, 3), list[Exception](), list[int]()

    def first_again(*args: Any, **kwargs: Any) -> Any:
        times.append(len(times))
        if len(times) == 1:
            raise TensorifyScalarRestartAnalysis(restart_reason="a number changes")
        return compile_fx_inner(*args, **kwargs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", first_again)
    call = region_compiler(HalvedBackward, lambda: None, failed.append)(layer)
    assert torch.allclose(call(x), layer(x))
    assert len(times) > 1
    assert failed == []


@pytest.mark.skipif(bool(INDUCTOR.missing()), reason=INDUCTOR.missing() or "there is a compiler")
def test_regions_of_one_kind_do_not_make_the_sizes_of_another_kind_variable() -> None:
    """Swin's second kind of layers was compiled for windows of any size: forty minutes instead of twenty seconds."""
    sizes: list[Any] = []

    def backward(graph: fx.GraphModule, compile_graph: Any, tensors: Sequence[int]) -> Any:
        del tensors
        sizes.extend(size for node in graph.graph.nodes if node.op == "placeholder" for size in node.meta["val"].shape)
        return compile_graph(graph)

    for width, rows in ((3, 2), (5, 7)):
        layer = nn.Linear(width, width)
        call = region_compiler(backward, lambda: None, lambda error: None)(layer)
        call(torch.randn(rows, width)).sum().backward()
    assert sizes
    assert all(type(size) is int for size in sizes)
