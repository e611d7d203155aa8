"""Lets a rank hold the tensors of its own stages, with their initial values, and no others."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.host_memory import return_freed_memory
from graphpipe.model.stage_program import StageProgram
from graphpipe.run.comm.collective_calls import collective_call
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.device.tensor_memory import give_memory, take_memory, was_freed
from graphpipe.run.initial_weights.init_weights import InitWeights
from graphpipe.run.initial_weights.own_tensors import all_tensors, modules_of, named_tensors, own_tensors
from graphpipe.run.initial_weights.weight_source import OwnTensor, WeightRequest, WeightSource
from graphpipe.run.weights.parameter_slices import own_slices


def host_tensors(
    model: nn.Module,
    programs: Sequence[StageProgram],
    placement: RankPlacement,
    world: World,
    source: WeightSource | None,
    seed: int,
) -> None:
    """Give this rank's stages memory and values, and free the tensors of all other stages; every rank must call this.

    Args:
        model: the user's, whose tensors have data or are on the meta device.
        programs: of all stages.
        placement: of the plan on the ranks.
        world: this rank.
        source: of the values. None: tensors keep their data, and those on the meta device are filled by `init`.
        seed: of the training.

    Raises:
        InvalidInput: on every rank: a tensor has no value in the source, or lost its own to an earlier pipeline.
        PeerLost, PeerStalled: another rank is gone.
    """
    hosted = {slot.stage for slot in placement.slots(world.rank)}
    tensors = own_tensors(model, programs, hosted, unused=world.rank == 0)
    if source is None and not any(tensor.is_meta for tensor, _ in named_tensors(model)):
        if len(hosted) < len(programs) or any(placement.plan.stages[stage].tensor > 1 for stage in hosted):
            _free_others(model, programs, tensors, hosted)
        return

    def host() -> None:
        if source is not None:
            source.check(model)
        own = _fill(model, programs, tensors, source, seed)
        _free_others(model, programs, own, hosted)
        _check_constants(model, programs, hosted)

    collective_call(world, host, slow=True)


def fill_stage(
    model: nn.Module, programs: Sequence[StageProgram], stage: int, source: WeightSource | None, seed: int
) -> None:
    """Give one stage memory and values for what it has on the meta device, in this process alone.

    Args:
        model: the user's.
        programs: of all stages.
        stage: whose tensors are filled.
        source: of the values; None: `init`.
        seed: of the training.

    Raises:
        InvalidInput: a tensor has no value in the source.
    """
    tensors = own_tensors(model, programs, (stage,), unused=False)
    if any(each.tensor.is_meta for each in tensors):
        _fill(model, programs, tensors, source, seed)


def _fill(
    model: nn.Module,
    programs: Sequence[StageProgram],
    own: Sequence[OwnTensor],
    source: WeightSource | None,
    seed: int,
) -> list[OwnTensor]:
    # Returns the tensors, some of which other objects stand for now.
    roots = modules_of(model, programs)
    asked = [each for each in own if each.tensor.is_meta or (source is not None and each.saved)]
    for each in asked:
        if source is None and was_freed(each.tensor):
            raise InvalidInput(
                f"'{each.name}' has no data here: an earlier pipeline of this model has freed it",
                where="initial_weights",
                remedy="Call sync_model() before the earlier pipeline is closed, or give initial_weights.",
            )
    wanted = [_with_memory(each, roots) for each in asked]
    # Tables in buffers that are in no file are made by the code of their modules.
    computed = [each for each in wanted if not each.saved]
    init = source if isinstance(source, InitWeights) else InitWeights()
    others = [each for each in wanted if each.saved]
    if source is None or source is init:
        init.fill(WeightRequest(model=model, wanted=wanted, seed=seed))
    else:
        init.fill(WeightRequest(model=model, wanted=computed, seed=seed))
        source.fill(WeightRequest(model=model, wanted=others, seed=seed))
    known = {id(each) for each in asked}
    return [*wanted, *(each for each in own if id(each) not in known)]


def _with_memory(own: OwnTensor, roots: Sequence[nn.Module]) -> OwnTensor:
    tensor = give_memory(own.tensor, roots) if own.tensor.is_meta else own.tensor
    return replace(own, tensor=tensor, whole=tensor if own.piece is None else own.whole)


def _free_others(
    model: nn.Module, programs: Sequence[StageProgram], own: Sequence[OwnTensor], hosted: Collection[int]
) -> None:
    for number in hosted:
        own_slices(programs[number])  # of layers that are split, whose whole is freed
    kept = {id(each.tensor) for each in own}
    for tensor in all_tensors(model, programs):
        if id(tensor) not in kept and not tensor.is_meta:
            take_memory(tensor, modules_of(model, programs))
    return_freed_memory()


def _check_constants(model: nn.Module, programs: Sequence[StageProgram], hosted: set[int]) -> None:
    # Plain attributes with tensors are no part of the state, and nothing can fill them.
    for number in sorted(hosted):
        for part in programs[number].module.modules():
            for name, value in vars(part).items():
                if isinstance(value, Tensor) and value.is_meta and value.grad_fn is None:  # a hook computes others
                    raise InvalidInput(
                        f"attribute '{name}' of {type(part).__name__} is on the meta device, and nothing fills it",
                        where="initial_weights",
                        remedy=f"Make it a buffer, or give a function that builds {type(model).__name__}.",
                    )
