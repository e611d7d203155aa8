"""Tries whether a submodule can be called with shards of the sequence: two threads compute half of the positions each.

Results, gradients of arguments and gradients of parameters are compared with those of the whole sequence. So whatever a
forward does with the length of its input is found, such as attention that no layer of a rank's own gathers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.graph import SequenceEntrance, SequenceModule, SubmoduleShards
from graphpipe.model.shards.drawn import Call, drawn_call, near, slice_of, with_drawn
from graphpipe.model.shards.layers.adapted import adapted_of
from graphpipe.model.shards.sequence.exchange import POSITIONS
from graphpipe.model.shards.shared_submodule import SharedSubmodule, gathering
from graphpipe.model.shards.trial import MOST, computed_by_two
from graphpipe.model.torch_private import TreeSpec, flatten, unflatten

_RANKS = 2
_SAMPLES = 2
"""More than one: with one, positions could be mixed up with samples, and nothing would show it."""


def try_sequence(
    module: nn.Module, path: str, shards: Sequence[SubmoduleShards], call: Call, *, untried: bool = False
) -> SequenceModule | None:
    """Return how a submodule can be called with shards of the sequence; None if it cannot.

    Args:
        module: the submodule, with or without data. It does not change.
        path: in the model.
        shards: how ranks share its layers.
        call: arguments whose tensors have the shapes and dtypes of real ones.
        untried: whether it is too much work to try it. Modules then gather shards, which more forwards take, and a
            submodule of which ranks share nothing is not divided.
    """
    entrances: tuple[SequenceEntrance, ...] = ("layers", "modules") if gathering(shards) else ("layers",)
    if untried or sum(each.numel() for each in module.parameters()) > MOST:
        if not shards or not _halvable(call):
            return None
        logits = any(each.style == "vocabulary-columns" for each in shards)
        return _found(module, path, shards, entrances[-1], returns=not logits)
    try:
        whole = with_drawn(module).eval()
        drawn = drawn_call(call, _SAMPLES)
        wanted = _computed(whole, drawn, whole)
    except Exception:  # any error of a forward that does not take drawn values
        return None
    if not wanted.halvable or not (shards or any(wanted.sequences)):
        return None
    for entrance in entrances:
        found = _tried(whole, path, shards, entrance, drawn, wanted)
        if found is not None:
            return found
    return None


def _found(
    module: nn.Module, path: str, shards: Sequence[SubmoduleShards], entrance: SequenceEntrance, *, returns: bool = True
) -> SequenceModule:
    prefix = f"{path}." if path else ""
    summed = tuple(prefix + name for name in _summed(module, path, shards, entrance))
    return SequenceModule(submodule=path, entrance=entrance, returns_shards=returns, summed=summed)


def _summed(
    module: nn.Module, path: str, shards: Sequence[SubmoduleShards], entrance: SequenceEntrance
) -> Iterator[str]:
    """Yield the parameters that see only the positions of a rank: neither divided, nor behind a gather."""
    prefix = f"{path}." if path else ""
    styles = {each.submodule: each.style for each in shards}
    heads = [each for each, style in styles.items() if style == "heads"]
    gathered = gathering(shards) if entrance == "modules" else frozenset[str]()
    behind = {f"{each}.out_proj" for each in heads if isinstance(_part(module, path, each), nn.MultiheadAttention)}
    adapted = {each: found for each in styles if (found := adapted_of(_part(module, path, each))) is not None}
    for each, found in adapted.items():
        if styles[each] == "row" and found.bias is not None:
            yield f"{each}.{found.bias}".removeprefix(prefix)
    for name, part in module.named_modules():
        full = (prefix + name).rstrip(".")
        if any(full == each or full.startswith(f"{each}.") for each in adapted):
            continue
        row = full in behind or styles.get(full) == "row"
        inside = any(full == each or full.startswith(f"{each}.") for each in gathered)
        whole = styles.get(full) in (None, "heads") and not (inside or isinstance(part, nn.MultiheadAttention))
        for own, parameter in part.named_parameters(recurse=False):
            if parameter.ndim == 1 if row else whole:  # a row's bias is added to shards
                yield f"{name}.{own}" if name else own


def _part(module: nn.Module, path: str, other: str) -> nn.Module:
    return module.get_submodule(other.removeprefix(path).lstrip("."))


@dataclass(frozen=True, slots=True)
class _Computed:
    """What a call computes."""

    outputs: list[Tensor]
    spec: TreeSpec
    arguments: Sequence[Tensor | None]
    """Gradients of the arguments that have one."""
    parameters: dict[str, Tensor | None]
    """Gradients of the parameters that are not divided."""
    sequences: list[bool]
    """Which of the arguments are sequences."""

    @property
    def halvable(self) -> bool:
        """Whether all sequences have an even number of positions, and there is one."""
        values = [each for each in self.outputs if _is_sequence(each)]
        lengths = [each.shape[POSITIONS] for each in values]
        lengths += [
            each.shape[POSITIONS]
            for each, is_one in zip(self.arguments, self.sequences, strict=True)
            if each is not None and is_one
        ]
        return bool(lengths) and all(length % _RANKS == 0 for length in lengths)


def _tried(
    whole: nn.Module,
    path: str,
    shards: Sequence[SubmoduleShards],
    entrance: SequenceEntrance,
    drawn: Call,
    wanted: _Computed,
) -> SequenceModule | None:
    leaves, spec = flatten(drawn)

    def compute(team: Any) -> _Computed:
        def shard(value: Any) -> Any:
            if not (isinstance(value, Tensor) and _is_sequence(value)):
                return value
            return _half(value, team.position).detach().requires_grad_(value.requires_grad)

        divided = [SequenceModule(submodule=path, entrance=entrance)]
        made = SharedSubmodule(shards, team, lambda piece: slice_of(whole, path, piece), divided)
        return _computed(made.make_on_shards(whole, path), unflatten([shard(each) for each in leaves], spec), whole)

    found = computed_by_two(compute)
    one, other = found
    if one is None or other is None or len(one.outputs) != len(wanted.outputs):
        return None
    forms = {
        kind
        for at, value in enumerate(wanted.outputs)
        if _is_sequence(value)
        for kind in [one.outputs[at].shape == value.shape]
    }
    if len(forms) > 1:
        return None
    returns = forms == {False}
    fact = _found(whole, path, shards, entrance, returns=returns)
    prefix = f"{path}." if path else ""
    summed = {name.removeprefix(prefix) for name in fact.summed}
    good = all(
        _alike(own, value, at, halved=returns and _is_sequence(value))
        for at, each in enumerate((one, other))
        for own, value in zip(each.outputs, wanted.outputs, strict=True)
    )
    good = good and all(
        _alike(own, value, at, halved=is_one)
        for at, each in enumerate((one, other))
        for own, value, is_one in zip(each.arguments, wanted.arguments, wanted.sequences, strict=True)
    )
    return fact if good and _sum_up(one, other, wanted, summed) else None


def _sum_up(one: _Computed, other: _Computed, wanted: _Computed, summed: set[str]) -> bool:
    for name, value in wanted.parameters.items():
        if name not in one.parameters:  # it is divided
            continue
        parts = [each.parameters[name] for each in (one, other)]
        here = [each for each in parts if each is not None]
        if value is None or not here:
            if value is not None or here:
                return False
        elif name in summed:
            if not near(torch.stack(here).sum(0), value):
                return False
        elif len(here) < _RANKS or not all(near(each, value) for each in here):
            return False
    return True


def _alike(own: Tensor | None, whole: Tensor | None, position: int, *, halved: bool) -> bool:
    if own is None or whole is None:
        return own is whole
    return near(own, _half(whole, position) if halved else whole)


def _half(value: Tensor, position: int) -> Tensor:
    return value.chunk(_RANKS, dim=POSITIONS)[position]


def _is_sequence(value: Tensor) -> bool:
    return value.ndim == 3 and value.shape[0] == _SAMPLES and value.requires_grad and value.is_floating_point()


def _halvable(call: Call) -> bool:
    found = [each for each in flatten(call)[0] if isinstance(each, Tensor) and each.ndim == 3 and each.requires_grad]
    return all(int(each.shape[POSITIONS]) % _RANKS == 0 for each in found)


def _computed(module: nn.Module, call: Call, whole: nn.Module) -> _Computed:
    leaves, spec = flatten(call)
    own = [each.detach().clone().requires_grad_(each.requires_grad) if _is_tensor(each) else each for each in leaves]
    args, kwargs = unflatten(own, spec)
    held = {id(each) for each in module.parameters()}
    named = {name: each for name, each in whole.named_parameters() if id(each) in held and each.requires_grad}
    entered = [each for each in own if isinstance(each, Tensor) and each.requires_grad]
    with torch.enable_grad():
        outputs, outputs_spec = flatten(module(*args, **kwargs))
        found = [each for each in outputs if isinstance(each, Tensor)]
        total = _total([each for each in found if each.requires_grad])
        roots = [*entered, *named.values()]
        gradients = [*torch.autograd.grad(total, roots, allow_unused=True)] if roots else []
    return _Computed(
        outputs=found,
        spec=outputs_spec,
        arguments=gradients[: len(entered)],
        parameters=dict(zip(named, gradients[len(entered) :], strict=True)),
        sequences=[_is_sequence(each) for each in entered],
    )


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _total(outputs: Sequence[Tensor]) -> Tensor:
    # Weights differ by column, so that no row of a softmax adds up to a constant.
    return torch.stack(
        [(each * torch.linspace(1, 2, each.shape[-1], dtype=each.dtype)).sum() for each in outputs]
    ).sum()
