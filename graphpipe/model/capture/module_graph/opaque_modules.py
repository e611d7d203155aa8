"""Which submodules are opaque: a graph has one call for each of them, and never a cut inside."""

from collections.abc import Collection, Iterator

from torch import nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.model.dag_module import DagModule
from graphpipe.model.fake_copy import Scripted

CONTAINERS = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    DagModule,
)


EVERY = "*"
"""As a name of a submodule to look into: all of them."""


def opaque_modules(root: nn.Module, split: Collection[str] = (), opaque: Collection[str] = ()) -> tuple[str, ...]:
    """Return the paths of the opaque submodules, in order of registration; they do not overlap.

    By default these are the submodules without children, the modules of `torch.nn` that are not containers, and leaf
    blocks: modules with a forward of their own whose children have no children (an attention, a feed-forward).

    Args:
        root: the model, which is never opaque itself.
        split: fully qualified names of submodules to look into, although they are opaque by default. `*`: all but the
            modules of `torch.nn` without children.
        opaque: fully qualified names of submodules that are opaque, although they are not by default.

    Raises:
        InvalidInput: a name that is not a submodule, or one that is both split and opaque.
    """
    known = [name for name, _ in root.named_modules() if name]
    for where, names in (("split", split), ("opaque", opaque)):
        for name in names:
            if name not in known and (where, name) != ("split", EVERY):
                raise InvalidInput(f"'{name}' is not a submodule", where=where, remedy=nearest(name, known))
    for name in split:
        if name in opaque:
            raise InvalidInput(f"'{name}' is both split and opaque", where="split")
    every = [path for path, module in root.named_modules() if not is_primitive(module)] if EVERY in split else []
    return tuple(dict.fromkeys(_walk(root, "", frozenset([*split, *every]), frozenset(opaque), set())))


def _walk(
    module: nn.Module, prefix: str, split: frozenset[str], opaque: frozenset[str], seen: set[int]
) -> Iterator[str]:
    for name, child in module.named_children():
        path = prefix + name
        if id(child) in seen:
            continue
        seen.add(id(child))
        if path in opaque or (path not in split and is_opaque(child)):
            yield path
        else:
            yield from _walk(child, path + ".", split, opaque, seen)


def is_opaque(module: nn.Module) -> bool:
    """True for a module that is opaque by default."""
    if is_container(module):
        return False
    if isinstance(module, Scripted):
        return True
    children = list(module.children())
    library = type(module).__module__.startswith("torch.nn.")
    return library or all(not list(child.children()) for child in children)


def is_inside(path: str, whole: str) -> bool:
    """True for the path of a submodule, and for those in it."""
    return path == whole or path.startswith(f"{whole}.")


def small_blocks(root: nn.Module, split: Collection[str]) -> set[str]:
    """Return the paths of submodules that may stay whole: their children are leaves, or containers of leaves.

    Args:
        root: the model.
        split: submodules to look into. There are none in what they contain.
    """
    blocks = {path for path, module in root.named_modules() if path and _is_small(module)}
    return {path for path in blocks if EVERY not in split and not any(is_inside(path, each) for each in split)}


def _is_small(module: nn.Module) -> bool:
    inner = [each for child in module.children() if is_container(child) for each in child.children()]
    others = [child for child in module.children() if not is_container(child)]
    return not is_container(module) and not any(list(each.children()) for each in [*inner, *others])


def followed_modules(root: nn.Module, paths: Collection[str]) -> dict[nn.Module, str]:
    """Return the modules whose forwards become glue, with their paths.

    Args:
        root: the model.
        paths: of the opaque submodules.
    """
    found = {module: path for path, module in root.named_modules()}
    whole = tuple(paths), tuple(f"{path}." for path in paths)
    return {module: path for module, path in found.items() if path not in whole[0] and not path.startswith(whole[1])}


def is_primitive(module: nn.Module) -> bool:
    """True for a module of `torch.nn` without children, such as a linear layer."""
    return type(module).__module__.startswith("torch.nn.") and not list(module.children())


def is_container(module: nn.Module) -> bool:
    """True for a module that only passes values between its children."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in CONTAINERS)
