"""What a vision tower of `transformers` computes from the sizes of images, before its layers.

The functions `get_vision_...` of transformers loop over images. Each leaves its work to the caller, if the tower is
given the result as a keyword argument. Some are in the file of a model. To know which of them a tower calls, and how,
its features are computed once on tensors without data.
"""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Any

from torch import Tensor, nn

from graphpipe.model.fake_copy import fake_copy
from graphpipe.model.own_loss.layer_class import layer_class
from graphpipe.model.quiet import quiet_export
from graphpipe.model.torch_private import call_directly, fake_mode, intercepted, outside_tracing

_HOME = "transformers.vision_utils"
_METHODS = {"image": "get_image_features", "video": "get_video_features", "": "forward"}
"""What computes the features of images and videos; the values are keyword arguments with these words in front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionValue:
    """A tensor that follows from the sizes of images."""

    name: str
    """The keyword argument of the model's forward."""
    source: str
    """The input with the sizes of images."""
    compute: Callable[[Tensor], Any]
    """Returns this value, or several, given the sizes."""
    position: int | None
    """Among several values; None if there is only one."""

    def of(self, sizes: Tensor) -> Tensor:
        """Return the value, given the sizes of images."""
        found = self.compute(sizes)
        return found if self.position is None else found[self.position]


def vision_values(model: Any, batch: Mapping[str, Tensor]) -> list[VisionValue]:
    """Return the values that a model's vision towers compute from the sizes of images.

    Args:
        model: of transformers.
        batch: a mini-batch as its processor returns it.
    """
    sizes = {name: each for name, each in batch.items() if name.endswith("grid_thw")}
    if not sizes:
        return []
    fake = fake_copy(model, mode := fake_mode())
    found: list[VisionValue] = []
    for kind, name in _METHODS.items():
        method = getattr(fake, name, None) or getattr(getattr(fake, "model", None), name, None)
        if method is None:
            continue
        known = signature(method).parameters
        given = {key: each for key, each in batch.items() if key in known}
        if not given.keys() & sizes.keys() or (not kind and found) or not _takes_more(model):
            continue
        with mode, quiet_export():
            inputs = {key: each.new_empty(each.shape) for key, each in given.items()}
        real = {id(inputs[key]): (key, each) for key, each in given.items() if key in sizes}
        with _noting(fake, real) as calls, quiet_export(), mode, suppress(Exception):
            method(**inputs)
        found += [value for call in calls for value in call.values(f"{kind}_" if kind else "")]
    return found


def _takes_more(model: nn.Module) -> bool:
    return any(each.kind is Parameter.VAR_KEYWORD for each in signature(model.forward).parameters.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    # A call of one of the functions, with the names under which it looks for its results.
    source: str
    compute: Callable[[Tensor], Any]
    keys: list[str]
    results: Any

    def values(self, prefix: str) -> list[VisionValue]:
        several = isinstance(self.results, tuple)
        listed = list(self.results) if several else [self.results]
        return [
            VisionValue(
                name=prefix + key, source=self.source, compute=self.compute, position=number if several else None
            )
            for number, (key, each) in enumerate(zip(self.keys, listed, strict=False))
            if isinstance(each, Tensor)
        ]


class _Asked(dict[str, Any]):
    # Keyword arguments without entries, which note what is looked for.
    def __init__(self) -> None:
        super().__init__()
        self.keys_asked: list[str] = []

    def pop(self, key: str, *_: Any) -> Any:
        self.keys_asked.append(key)


@contextmanager
def _noting(model: nn.Module, real: Mapping[int, tuple[str, Tensor]]) -> Generator[list[_Call]]:
    # While inside, calls of the functions are listed, and work on the real sizes.
    calls: list[_Call] = []
    places = {type(part).__module__ for part in model.modules()}
    homes = [sys.modules[name] for name in sorted(places) if name in sys.modules and name != _HOME]
    replaced = [
        (home, name, function)
        for home in homes
        for name, function in vars(home).items()
        if _is_precomputable(name, function)
    ]
    for home, name, function in replaced:
        setattr(home, name, partial(_note, function, calls, real))
    try:
        with ExitStack() as layers:
            for part in model.modules():
                if isinstance(part, layer_class()):
                    layers.enter_context(intercepted(part, partial(_same, part)))
            yield calls
    finally:
        for home, name, function in replaced:
            setattr(home, name, function)


def _same(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # A layer that attends to one image after the other may fail on tensors without data. What comes after it is called
    # with its argument then, which has the shape of its result.
    try:
        return call_directly(layer, *args, **kwargs)
    except Exception:
        return args[0]


def _is_precomputable(name: str, function: Any) -> bool:
    if not callable(function) or getattr(function, "__module__", "") == _HOME:
        return callable(function)
    return name.startswith("get_vision_") and "kwargs" in signature(function).parameters


def _note(
    function: Callable[..., Any],
    calls: list[_Call],
    real: Mapping[int, tuple[str, Tensor]],
    sizes: Tensor,
    *args: Any,
    kwargs: Any = None,
    **more: Any,
) -> Any:
    source, values = real[id(sizes)]
    asked = _Asked()
    compute = partial(_computed, function, args, more)
    with outside_tracing():
        results = function(values, *args, kwargs=asked, **more)
    calls.append(_Call(source=source, compute=compute, keys=asked.keys_asked, results=results))
    return results


def _computed(function: Callable[..., Any], args: tuple[Any, ...], more: Mapping[str, Any], sizes: Tensor) -> Any:
    return function(sizes, *args, **more)
