"""Watches a function that builds a model, while most of the tensors that it makes have no data.

    registered:  a parameter moves to the meta device, and so does what is computed of it
    named:       each such tensor has an origin: `3` is the third registration, `3/clone0` the first copy of it
    kept:        when the function runs again, the tensors of chosen origins keep their data

So the constructor's own code makes the values, whatever it does: it draws a weight again, copies one into another, or
computes it by an orthogonal decomposition. `torchdistx.deferred_init` had the same aim, and recorded a tape. Code that
does less on the meta device, such as torch's `trunc_normal_`, would not be on the tape.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, final
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from graphpipe.model.torch_private import (
    DispatchMode,
    Operator,
    flatten,
    is_random,
    is_view,
    memory_key,
    outside_tracing,
    reads_no_values,
    unflatten,
    written_arguments,
)

Origin = str
"""How a tensor was made. It does not depend on which tensors have data."""


@final
class Constructing(DispatchMode):
    """While it is entered, and `register` is called with every parameter, tensors have data only if they are kept.

    Args:
        known: the origins of an earlier run.
        keep: those of them whose tensors keep their data.
        homes: memory for some of the registered parameters.
        draw: called before random numbers are drawn, with the origin of the tensor that they are written into, or with
            the number of draws that had none.
    """

    reads: dict[Origin, set[Origin]]
    """Whose values were written into the tensors of each origin."""
    draws: int
    """How often random numbers were drawn that were not written into a registered tensor."""

    def __init__(
        self,
        known: Collection[Origin] = (),
        keep: Collection[Origin] = (),
        homes: Mapping[Origin, Tensor] | None = None,
        draw: Callable[[Origin], None] | None = None,
    ) -> None:
        super().__init__()
        self.reads, self.draws = {}, 0
        self._known, self._keep, self._homes, self._draw = known, keep, homes or {}, draw
        self._origins: dict[int, Origin] = {}  # by memory
        self._held: list[StorageWeakRef] = []  # so that no other memory gets the same key
        self._registered: dict[int, tuple[ReferenceType[nn.Parameter], nn.Parameter]] = {}
        self._counts = Counter[str]()

    def origin(self, tensor: Tensor) -> Origin | None:
        """Return how a tensor was made; None if nothing of it was registered."""
        return self._origins.get(memory_key(tensor)) if tensor.layout == torch.strided else None

    def register(self, owner: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        """Return the parameter to register in place of this one; None for the same."""
        del owner, name
        if parameter.is_meta or self.origin(parameter) is not None:
            return None
        original, made = self._registered.get(id(parameter), (None, None))
        if made is None or original is None or original() is not parameter:
            origin = self._next("")
            with outside_tracing():
                made = self._placed(parameter, origin)
            self._registered[id(parameter)] = ref(parameter), made
            self._note(made, origin, frozenset())
        return made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, on the meta device if its result is not kept."""
        leaves, spec = flatten((args, kwargs or {}))
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        written = written_arguments(func, args, kwargs or {}) if isinstance(func, Operator) else []
        sources = [origin for origin in map(self.origin, tensors) if origin is not None]
        if not sources:
            self._seed(func, f"draw {self.draws}")
            self.draws += is_random(func)
            return func(*args, **(kwargs or {}))
        if isinstance(func, Operator) and is_view(func) and not written:
            return func(*args, **(kwargs or {}))
        origin = self._next(f"{sources[0]}/{func.__name__.partition('.')[0]}") if not written else None
        dropped = origin in self._known and origin not in self._keep
        if dropped or any(each.is_meta for each in tensors):
            leaves = [_on_meta(each) if not any(each is other for other in written) else each for each in leaves]
        elif is_random(func):
            self._seed(func, origin or next(filter(None, map(self.origin, written)), ""))
            # A generator of the function's own is not where it would be if all tensors had data.
            leaves = [None if isinstance(each, torch.Generator) else each for each in leaves]
        given, named = unflatten(leaves, spec)
        result = func(*given, **named)
        read = frozenset[Origin]() if reads_no_values(func) else frozenset(sources)
        for tensor in [*written, *(each for each in flatten(result)[0] if isinstance(each, Tensor))]:
            if (made := self.origin(tensor) or origin) is not None:
                self._note(tensor, made, read)
        return result

    def _placed(self, parameter: nn.Parameter, origin: Origin) -> nn.Parameter:
        home = self._homes.get(origin)
        if home is not None and home.shape == parameter.shape and home.dtype == parameter.dtype:
            home.detach().copy_(parameter.detach())
            values = home.detach()
        elif origin in self._keep:
            return parameter
        else:
            values = parameter.detach().to("meta")
        made = nn.Parameter(values, parameter.requires_grad)
        vars(made).update(vars(parameter))  # libraries mark parameters that have their values
        return made

    def _next(self, kind: str) -> Origin:
        self._counts[kind] += 1
        return f"{kind}{self._counts[kind] - 1}"

    def _note(self, tensor: Tensor, origin: Origin, read: frozenset[Origin]) -> None:
        if memory_key(tensor) not in self._origins:
            self._held.append(StorageWeakRef(tensor.untyped_storage()))
            self._origins[memory_key(tensor)] = origin
        self.reads.setdefault(origin, set()).update(read - {origin})

    def _seed(self, func: object, place: str) -> None:
        if self._draw is not None and is_random(func):
            self._draw(place)


def _on_meta(value: object) -> object:
    if not isinstance(value, Tensor) or value.is_meta:
        return value
    with outside_tracing():
        return value.to("meta")
