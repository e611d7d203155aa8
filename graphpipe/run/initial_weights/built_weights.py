"""New weights by the function that builds the model: it runs again, and only the tensors that are wanted have data.

So they are what the model's constructor makes of them. Each operator that draws has a seed of its own, which depends on
the name of the parameter, so that the values do not depend on which others are wanted.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.model.split.submodules import sliced
from graphpipe.model.torch_private import memory_key
from graphpipe.model.without_data.constructing import Constructing, Origin
from graphpipe.model.without_data.construction import Construction
from graphpipe.model.without_data.meta_model import build_model
from graphpipe.run.initial_weights.named_draws import PlaceSeeds
from graphpipe.run.initial_weights.own_tensors import named_tensors
from graphpipe.run.initial_weights.weight_source import OwnTensor

_REMEDY = "Let it build the same model each time, or set initial_weights=gp.Weights.init(function)."


def fill_built(construction: Construction, wanted: Sequence[OwnTensor], seed: int) -> None:
    """Fill tensors with the values that the constructor of the model makes.

    Args:
        construction: of the model.
        wanted: tensors whose names it knows.
        seed: of the training.

    Raises:
        InvalidInput: the function fails, or builds another model than before.
    """
    for tensors in _rounds(wanted):
        _fill(construction, tensors, seed)


def _rounds(wanted: Sequence[OwnTensor]) -> Iterator[list[OwnTensor]]:
    # Layers that the plan splits are made whole, so each round makes no more of them than this rank holds anyway.
    if whole := [each for each in wanted if each.piece is None]:
        yield whole
    limit = sum(each.tensor.nbytes for each in wanted)
    made = list[OwnTensor]()
    for each in wanted:
        if each.piece is not None:
            if made and sum(other.whole.nbytes for other in [*made, each]) > limit:
                yield made
                made = []
            made.append(each)
    if made:
        yield made


def _fill(construction: Construction, wanted: Sequence[OwnTensor], seed: int) -> None:
    names: dict[Origin, str] = {}
    for name, origin in construction.origins.items():
        if origin is not None:
            names.setdefault(origin, name)
    seeds = PlaceSeeds(seed)
    seeds.seed_python("constructor")
    watch = Constructing(
        known=construction.reads.keys(),
        keep=construction.needed(each.name for each in wanted),
        homes=_homes(construction, wanted),
        draw=lambda origin: seeds.seed(names.get(origin, origin)),
    )
    model = build_model(construction.build, watch)
    made = {name: tensor for tensor, name in named_tensors(model)}
    same = all(name in made and watch.origin(made[name]) == origin for name, origin in construction.origins.items())
    if not same or watch.draws != construction.draws:
        what = "the function that builds the model does something else when its parameters have data"
        raise InvalidInput(what, where="initial_weights", remedy=_REMEDY)
    with torch.no_grad():
        for each in wanted:
            _take(each, made[each.name])
    own = {memory_key(each.tensor) for each in wanted}
    beside = any(watch.origin(each) and not each.is_meta and memory_key(each) not in own for each in made.values())
    del made, model, watch
    if beside:
        gc.collect()  # models may hold themselves


def _homes(construction: Construction, wanted: Sequence[OwnTensor]) -> Mapping[Origin, Tensor]:
    # Where registered parameters are made, so that they have memory only once.
    made = [(construction.origins[each.name], each) for each in wanted if each.piece is None]
    return {origin: each.tensor for origin, each in made if origin is not None}


def _take(own: OwnTensor, made: Tensor) -> None:
    if made.is_meta or (made.shape, made.dtype) != (own.whole.shape, own.whole.dtype):
        what = f"the function that builds the model makes another '{own.name}' each time"
        raise InvalidInput(what, where="initial_weights", remedy=_REMEDY)
    values = made.detach() if own.piece is None else sliced(made.detach(), own.piece)
    if memory_key(made) != memory_key(own.tensor):
        own.tensor.copy_(values)
    elif (values.data_ptr(), values.stride()) != (own.tensor.data_ptr(), own.tensor.stride()):
        own.tensor.copy_(values.clone())  # the constructor made a view of it
