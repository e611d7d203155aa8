"""Attributes in which a forward keeps values for its next call, such as a memory bank or a recurrent state.

torch.export undoes what a forward does to attributes, so that a trace has what the first call computed.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from graphpipe.model.capture.module_graph.calls.observed_attributes import attributes_observed
from graphpipe.model.hidden.attribute_uses import attribute_uses
from graphpipe.model.kept_attributes import CONTAINERS, attributes_kept, plain_attributes
from graphpipe.user_frames import warn_user


def warn_of_remembered(root: nn.Module, followed: Mapping[nn.Module, str], call: Callable[[], object]) -> None:
    """Warn of the first attribute that every call of a forward reads, and then changes for the next call.

    A table that the first call makes is not changed by the second. What a forward only sets, nothing computes with.

    Args:
        root: the model on fake tensors. Its attributes are as before afterwards.
        followed: its modules whose forwards become glue, with their paths.
        call: calls it.
    """
    names = {module: found for module in followed if (found := _candidates(module))}
    if not names:
        return
    read, stored = set[tuple[nn.Module, str]](), set[tuple[nn.Module, str]]()

    def note_read(module: nn.Module, name: str) -> None:
        if (module, name) not in stored:
            read.add((module, name))

    with attributes_kept(root):
        try:
            call()
            before = {module: _contents(module, names[module]) for module in names}
            with attributes_observed(names, note_read, lambda module, name: stored.add((module, name))):
                call()
        except Exception:  # What does not run on fake tensors outside of a trace is left to `gp.check`.
            return
        changed = [
            (followed[module], name)
            for module, found in before.items()
            for name, contents in _contents(module, names[module]).items()
            if (module, name) in read and not _same(contents, found[name])
        ]
    if changed:
        path, name = changed[0]
        whose = f"'{path}'" if path else "the model itself"
        warn_user(
            f"the forward of {whose} reads '{name}', and keeps other values in it for its next call. A pipeline "
            "follows this forward as its first call goes, and keeps nothing. Do so in a submodule that stays whole and "
            "has the whole mini-batch (opaque=[...], whole_batch=[...])."
        )


def _candidates(module: nn.Module) -> frozenset[str]:
    # Attributes that its code both reads and sets, and containers that it reads. Others do not remember.
    uses = attribute_uses(type(module))
    return frozenset(
        name
        for name, value in plain_attributes(module).items()
        if name in uses.read
        and (isinstance(value, CONTAINERS) or (name in uses.stored and (value is None or isinstance(value, Tensor))))
    )


def _contents(module: nn.Module, names: frozenset[str]) -> dict[str, tuple[object, ...]]:
    return {name: _parts(vars(module).get(name)) for name in names}


def _parts(value: object) -> tuple[object, ...]:
    # The objects themselves, which are compared by identity: who holds them keeps another from taking their place.
    if isinstance(value, dict):
        return (*cast(dict[object, object], value).keys(), *cast(dict[object, object], value).values())
    return tuple(cast(Any, value)) if isinstance(value, CONTAINERS) else (value,)


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(first is second for first, second in zip(one, other, strict=True))
