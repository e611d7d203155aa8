"""Which attributes the forward of a class reads and sets, by its code."""

import dis
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import CodeType

from torch import nn


@dataclass(frozen=True, slots=True)
class AttributeUses:
    """The names of attributes, of the module itself or of other objects."""

    read: frozenset[str]
    stored: frozenset[str]
    own: frozenset[str]
    """Those that are stored in the module itself."""


@lru_cache(1024)
def attribute_uses(kind: type[nn.Module]) -> AttributeUses:
    """Return what the forward of a class, and its own methods that the forward names, read and set.

    A counter often has a method for itself.
    """
    codes = [(code.co_varnames[:1], [*dis.get_instructions(code)]) for code in _codes(kind)]
    uses = [(each.opname, str(each.argval)) for _, instructions in codes for each in instructions]
    return AttributeUses(
        read=frozenset(name for use, name in uses if use in ("LOAD_ATTR", "LOAD_METHOD")),
        stored=frozenset(name for use, name in uses if use == "STORE_ATTR"),
        own=frozenset(name for first, instructions in codes for name in _stored_in(first, instructions)),
    )


def _stored_in(variables: Collection[str], instructions: Iterable[dis.Instruction]) -> Iterator[str]:
    # The attributes of variables that code sets. Python may load two variables by one instruction.
    for before, each in pairwise(instructions):
        if each.opname == "STORE_ATTR" and before.opname.startswith("LOAD_FAST"):
            loaded = before.argval[-1] if isinstance(before.argval, tuple) else before.argval
            if loaded in variables:
                yield str(each.argval)


def _codes(kind: type[nn.Module]) -> list[CodeType]:
    found: dict[str, CodeType] = {}
    names = ["forward"]
    while names:
        name = names.pop()
        code = getattr(getattr(kind, name, None), "__code__", None)
        if name in found or code is None or getattr(nn.Module, name, None) is getattr(kind, name):
            continue
        found[name] = code
        names += code.co_names
    return [*found.values()]
