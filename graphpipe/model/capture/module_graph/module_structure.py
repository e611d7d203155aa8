"""What two modules must have in common so that calls of equal arguments return tensors of equal shapes."""

from torch import Tensor, nn

from graphpipe.model.recorders import is_recorder

_NUMBERS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "idx", "index"})
"""Attributes that tell layers apart. They name a layer in a cache, and do not change what it computes."""
_INSIDE = frozenset(vars(nn.Module()))


def module_structure(module: nn.Module) -> object:
    """Return a value that is equal for modules of equal classes, attributes, and shapes of tensors, also inside.

    Objects that are neither modules, tensors nor plain values count as equal only if they are the same object. A
    module with hooks equals only itself.
    """
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    hooks = [hook for name in _INSIDE if name.endswith("_hooks") for hook in vars(module)[name].values()]
    return (
        type(module) if all(map(is_recorder, hooks)) else id(module),
        tuple((name, _value(value)) for name, value in sorted(vars(module).items()) if _counts(name)),
        tuple((name, each.shape, each.dtype, each.requires_grad) for name, each in tensors),
        tuple((name, module_structure(child)) for name, child in module.named_children()),
    )


def _counts(name: str) -> bool:
    return name not in _INSIDE and name not in _NUMBERS


def _value(value: object) -> object:
    if isinstance(value, bool | int | float | str | type(None)):
        return type(value), value
    if isinstance(value, tuple | list) and len(value) < 10:
        return type(value), *map(_value, value)
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return id(value)
