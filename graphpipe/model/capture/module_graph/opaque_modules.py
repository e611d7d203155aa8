"""Which submodules are kept whole: the default granularity of a captured graph."""

from collections.abc import Collection, Iterator

from torch import nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.model.dag_module import DagModule

CONTAINERS = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    DagModule,
)


def whole_paths(root: nn.Module, split: Collection[str] = (), opaque: Collection[str] = ()) -> tuple[str, ...]:
    """Return the submodules that are kept whole, none inside another, in order of registration.

    By default these are the submodules without children, the modules of `torch.nn` that are no containers, and leaf
    blocks: modules with a forward of their own whose children have no children (an attention, a feed-forward).

    Args:
        root: the model; never kept whole itself.
        split: fully qualified names to look into against the default.
        opaque: fully qualified names to keep whole against the default.

    Raises:
        InvalidInput: a name that is no submodule, or one that is both.
    """
    known = [name for name, _ in root.named_modules() if name]
    for where, names in (("split", split), ("opaque", opaque)):
        for name in names:
            if name not in known:
                raise InvalidInput(f"'{name}' is no submodule", where=where, remedy=nearest(name, known))
    for name in split:
        if name in opaque:
            raise InvalidInput(f"'{name}' is to be split and to be opaque", where="split")
    return tuple(dict.fromkeys(_walk(root, "", frozenset(split), frozenset(opaque), set())))


def _walk(
    module: nn.Module, prefix: str, split: frozenset[str], opaque: frozenset[str], seen: set[int]
) -> Iterator[str]:
    for name, child in module.named_children():
        path = prefix + name
        if id(child) in seen:
            continue
        seen.add(id(child))
        if path in opaque or (path not in split and is_whole(child)):
            yield path
        else:
            yield from _walk(child, path + ".", split, opaque, seen)


def is_whole(module: nn.Module) -> bool:
    """True for a module that is kept whole by default."""
    if is_container(module):
        return False
    children = list(module.children())
    library = type(module).__module__.startswith("torch.nn.")
    return library or all(not list(child.children()) for child in children)


def is_container(module: nn.Module) -> bool:
    """True for a module that only passes values between its children."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in CONTAINERS)
