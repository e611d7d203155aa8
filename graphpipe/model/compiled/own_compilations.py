"""The regions of stages that the user has compiled, and how.

user's model                            stages                              regions
layer.compile()                         call the layer                      the layer
torch.compile(layer)                    call the layer, or its wrapper      the layer
tower.compile(), cut by the plan        call layers of the tower            these layers
mlp.compile(), cut into operations      call linears and functions          the stage, if it has nothing else
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import fx, nn

from graphpipe.model.compiled.torch_compiler import Compilation, compilation_of, wrapped
from graphpipe.model.split.recompute_region import RecomputeRegion
from graphpipe.model.torch_private import compiled_form
from graphpipe.user_frames import warn_user

Regions = Mapping[str, Compilation]
"""How regions of a stage are compiled, by their names in its module. The empty name is the whole stage."""


@dataclass(frozen=True, slots=True)
class _Owner:
    path: str
    module: nn.Module
    asked: Compilation


def own_compilations(model: nn.Module, stages: Sequence[tuple[str, nn.Module]]) -> dict[str, Regions]:
    """Return the regions of stages that the user has compiled, by stage; only stages that have some.

    A warning names what the plan cuts into single operations, which run eagerly beside those of other modules.

    Args:
        model: the user's.
        stages: names and modules, which call the user's own submodules.
    """
    owners = _owners(model)
    if not owners:
        return {}
    found = {name: _regions(name, module, owners) for name, module in stages}
    return {name: regions for name, regions in found.items() if regions}


def called_parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the submodules that a stage calls."""
    if not isinstance(module, fx.GraphModule):
        yield from module.children()
        return
    for node in module.graph.nodes:
        if node.op == "call_module":
            part = module.get_submodule(str(node.target))
            # What a region keeps is decided outside of what is compiled.
            yield from _called_in(part.inner) if isinstance(part, RecomputeRegion) else [part]


def _called_in(region: nn.Module) -> list[nn.Module]:
    parts = [*called_parts(region)]
    return parts if any(True for part in parts for _ in part.children()) else [region]


def _owners(model: nn.Module) -> dict[int, _Owner]:
    # The outermost compiled module that each module is in, by identity.
    owners: dict[int, _Owner] = {}
    for path, module in model.named_modules():  # outer ones first
        if compiled_form(module) in ("wrapper", "in place") and id(module) not in owners:
            owner = owners[id(module)] = _Owner(path, wrapped(module), replace(compilation_of(module), path=path))
            for inner in owner.module.modules():
                owners.setdefault(id(inner), owner)
    return owners


def _regions(stage: str, module: nn.Module, owners: Mapping[int, _Owner]) -> Regions:
    parts = [*dict.fromkeys(called_parts(module))]
    inside = [*_inside(parts, owners)]
    owned = {owner.path: owner for part in parts if (owner := owners.get(id(part))) is not None}
    if not inside and len(owned) == 1 and all(id(part) in owners for part in parts):
        return {"": next(iter(owned.values())).asked}
    for path in owned.keys() - {owner.path for _, owner in inside}:
        warn_user(
            f"'{path}' is compiled by torch.compile, and the plan cuts it into operations, which stage '{stage}' runs "
            "eagerly. Keep it whole (opaque), or let the pipeline compile all stages (PipelineOptions(compile=True))"
        )
    names = {id(part): name for name, part in module.named_modules()}
    return {names[id(part)]: owner.asked for part, owner in inside}


def _inside(parts: Sequence[nn.Module], owners: Mapping[int, _Owner]) -> Iterator[tuple[nn.Module, _Owner]]:
    for part in parts:
        if (owner := owners.get(id(part))) is None:
            yield from _inside([*part.children()], owners)
        elif wrapped(part) is owner.module or any(True for _ in part.children()):
            yield wrapped(part), owner
