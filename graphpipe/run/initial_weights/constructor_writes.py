"""Whether the code of the submodules draws a parameter as the constructor of the model did.

A tensor on the meta device has no values, but it counts how often it was written. A layer that its own constructor
fills, and a constructor around it draws anew, was written more often than by the layer's `reset_parameters`.
"""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.fake_copy import computed_attributes
from graphpipe.model.torch_private import write_count
from graphpipe.run.initial_weights.init_code import InitFunction, init_by_parent, own_reset, paths_inner_first
from graphpipe.run.initial_weights.own_tensors import all_tensors, named_tensors, names_of
from graphpipe.run.initial_weights.untraced_writes import untraced_write
from graphpipe.run.initial_weights.weight_source import OwnTensor

_REMEDY = (
    "Give a function that builds the model without torch.device('meta'), whose constructor then runs, or "
    "initial_weights=gp.Weights.init(function)."
)


def check_constructor_writes(model: nn.Module, wanted: Sequence[OwnTensor]) -> None:
    """Check that the code of the submodules writes parameters as often as the constructor did.

    Under `_init_weights(submodule)`, fewer writes are allowed: models of Hugging Face leave it out on the meta device.

    Raises:
        InvalidInput: a parameter was written more often, or otherwise; or a constructor may have written unseen.
    """
    _check_untraced(model)
    bare = _without_memory(model)
    resets = _writes(bare, lambda path, part: own_reset(part))
    parents = _writes(bare, lambda path, part: init_by_parent(bare, path))
    for each in wanted:
        by_reset, by_parent = resets[each.name], parents[each.name]
        known = each.writes <= by_reset + by_parent if by_parent else each.writes == by_reset
        if isinstance(each.whole, nn.Parameter) and not known:
            raise InvalidInput(
                f"the constructor wrote '{each.name}' {each.writes} times and the code of its submodule "
                f"{by_reset + by_parent} times, so its new values would not be those of the constructor",
                where="initial_weights",
                remedy=_REMEDY,
            )


def _check_untraced(model: nn.Module) -> None:
    first = {type(part): path for path, part in reversed([*model.named_modules()])}
    for kind, path in first.items():
        if init_by_parent(model, path) is None and (name := untraced_write(kind)):
            raise InvalidInput(
                f"the constructor of {kind.__name__} uses '{name}', which leaves no trace on the meta device, so "
                "its values are lost",
                where="initial_weights",
                remedy=_REMEDY,
            )


def _without_memory(model: nn.Module) -> nn.Module:
    # A copy in which no tensors are tied, because the first module that has a tied tensor fills it.
    names = {key: found[0] for key, found in names_of(model).items()}
    tensors = [*all_tensors(model), *computed_attributes(model)]
    made = copy.deepcopy(model, {id(tensor): _bare(tensor) for tensor in tensors})
    for tensor, name in [*named_tensors(model)]:
        if names[id(tensor)] != name:
            path, _, own_name = name.rpartition(".")
            setattr(made.get_submodule(path), own_name, _bare(tensor))
    return made


def _bare(tensor: Tensor) -> Tensor:
    made = torch.empty_like(tensor, device="meta")
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def _writes(model: nn.Module, code_of: Callable[[str, nn.Module], InitFunction | None]) -> Counter[str]:
    # How often the code of all submodules writes each tensor, by its name.
    before = {name: (tensor, write_count(tensor)) for tensor, name in named_tensors(model)}
    with torch.no_grad():
        for path, part in paths_inner_first(model):
            code = code_of(path, part)
            if code is not None:
                with suppress(Exception):  # the code is called again, with memory, and then says why
                    code(part)
    return Counter({name: write_count(tensor) - count for name, (tensor, count) in before.items()})
