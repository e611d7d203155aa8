"""A whole model with data, made from one without, where it fits in memory."""

import copy

from torch import nn

from graphpipe.model.fake_copy import uncopied
from graphpipe.model.torch_private import write_count
from graphpipe.model.without_data.meta_model import note_copy
from graphpipe.run.device.tensor_memory import give_memory
from graphpipe.run.initial_weights.init_weights import InitWeights
from graphpipe.run.initial_weights.own_tensors import all_tensors, named_tensors, names_of, saved_ids
from graphpipe.run.initial_weights.weight_source import OwnTensor, WeightRequest, WeightSource


def lacks_data(model: nn.Module) -> bool:
    """Whether a tensor of a model is on the meta device."""
    return any(tensor.is_meta for tensor, _ in named_tensors(model))


def filled_copy(model: nn.Module, source: WeightSource | None, seed: int) -> nn.Module:
    """Return a copy of a model with data for all tensors.

    Args:
        model: the user's, which is not changed.
        source: of the values; None: `init` for the tensors without data.
        seed: of the training.

    Raises:
        InvalidInput: a tensor has no value in the source.
    """
    made = copy.deepcopy(model, uncopied(model))
    note_copy(model, made)
    empty = {name for tensor, name in named_tensors(made) if tensor.is_meta}
    for tensor in all_tensors(made):
        if tensor.is_meta:
            give_memory(tensor, [made])
    saved, names = saved_ids(made), names_of(made)
    writes = {name: write_count(tensor) for tensor, name in named_tensors(model)}
    own = [
        OwnTensor(
            names=names[id(tensor)],
            tensor=tensor,
            whole=tensor,
            piece=None,
            saved=id(tensor) in saved,
            writes=writes[names[id(tensor)][0]],
        )
        for tensor in all_tensors(made)
    ]
    computed = [each for each in own if each.name in empty and (source is None or not each.saved)]
    InitWeights().fill(WeightRequest(model=made, wanted=computed, seed=seed))
    if source is not None:
        source.check(made)
        source.fill(WeightRequest(model=made, wanted=[each for each in own if each.saved], seed=seed))
    return made
