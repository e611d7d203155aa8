"""Short descriptions of what a model and a loss compute, by which ranks find out that theirs are not the same.

Another version of a source file on one host, or a branch by the name of the host, gives a rank other layers, although
all shapes and weights are equal. Hashed are the classes of the layers, what they print of themselves (such as the
probability of a dropout), and the code of forwards outside of torch.
"""

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from types import CodeType
from typing import Any, cast

from torch import nn

_PLAIN = (bool, int, float, str, bytes, type(None))


def computed_alike(model: object, loss_fn: Callable[..., Any]) -> dict[str, str]:
    """Return descriptions of what must be computed alike on all ranks, by what they describe.

    Args:
        model: the user's module; of anything else there is no description.
        loss_fn: of the training.
    """
    layers = digest_of_layers(model) if isinstance(model, nn.Module) else ""
    return {"model, with equal shapes,": layers, "loss_fn": digest_of_loss(loss_fn)}


def digest_of_layers(model: nn.Module) -> str:
    """Return 8 hexadecimal digits of the layers of a model."""
    return _digits(_layers(model))


def digest_of_loss(loss_fn: Callable[..., Any]) -> str:
    """Return 8 hexadecimal digits of a loss: its code, or its layers and their numbers. Tensors do not count."""
    return _digits(_function(loss_fn))


def _layers(model: nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        kind = type(module)
        yield f"{name} {kind.__module__}.{kind.__qualname__} {module.extra_repr()}"
        if not kind.__module__.startswith("torch."):
            yield from _code(getattr(kind.forward, "__code__", None))


def _function(value: object) -> Iterator[str]:
    if isinstance(value, partial):
        given = cast("partial[Any]", value)
        yield from _function(given.func)
        yield from (str(each) for each in (*given.args, *sorted(given.keywords.items())) if _is_plain(each))
    elif isinstance(value, nn.Module):
        yield from _layers(value)
        for module in value.modules():
            yield from (f"{name} {each}" for name, each in sorted(vars(module).items()) if isinstance(each, _PLAIN))
    else:
        inner = getattr(value, "function", None)  # of a loss with a weight
        yield from () if inner is None else _function(inner)
        yield getattr(value, "__qualname__", type(value).__qualname__)
        yield from _code(getattr(value, "__code__", None))


def _code(code: CodeType | None) -> Iterator[str]:
    if code is None:
        return
    yield f"{code.co_code.hex()} {code.co_names}"
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _code(each)
        elif _is_plain(each):
            yield repr(each)


def _is_plain(value: object) -> bool:
    # Sets print their values in an order of each process.
    if isinstance(value, tuple):
        return all(map(_is_plain, cast("tuple[object, ...]", value)))
    return isinstance(value, _PLAIN)


def _digits(lines: Iterator[str]) -> str:
    state = blake2b(digest_size=4)
    for line in lines:
        state.update(f"{line}\n".encode(errors="replace"))
    return state.hexdigest()
