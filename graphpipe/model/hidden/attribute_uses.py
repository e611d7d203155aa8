"""Which attributes the forward of a class reads and sets, by its code."""

import dis
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from torch import nn


@dataclass(frozen=True, slots=True)
class AttributeUses:
    """The names of attributes, of the module itself or of other objects."""

    read: frozenset[str]
    stored: frozenset[str]


@lru_cache(1024)
def attribute_uses(kind: type[nn.Module]) -> AttributeUses:
    """Return what the forward of a class, and its own methods that the forward names, read and set.

    A counter often has a method for itself.
    """
    uses = [(each.opname, str(each.argval)) for code in _codes(kind) for each in dis.get_instructions(code)]
    return AttributeUses(
        read=frozenset(name for use, name in uses if use in ("LOAD_ATTR", "LOAD_METHOD")),
        stored=frozenset(name for use, name in uses if use == "STORE_ATTR"),
    )


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
