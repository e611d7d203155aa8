"""Inputs as a processor of `transformers` returns them, divided by samples.

A processor may put the patches or tiles of all images into one dimension. It leaves to the model what follows from the
sizes of images and from the placeholders of a text: positions, and where one image ends and the next begins. A model
computes these in loops over samples, which cannot be captured, but also takes them as inputs. So they are inputs here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.inputs.input_forms import by_samples
from graphpipe.model.own_loss.vision_values import VisionValue, vision_values

_OF_SAMPLES = ("labels", "input_ids", "decoder_input_ids", "inputs_embeds", "attention_mask")
"""Inputs whose first dimension is always samples."""
_PLACEHOLDERS = tuple(f"{kind}_token_{end}" for kind in ("image", "video", "audio") for end in ("id", "index"))
_UNEQUAL = (
    "Every sample needs the same number of images, of the same size: resize them, or make mini-batches of samples that "
    "are alike. Mini-batches may differ from each other."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorInputs:
    """How the inputs of a model follow from what its processor returns."""

    forms: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the inputs that do not have samples in front (see `input_forms`)."""
    values: tuple[VisionValue, ...] = ()
    """Inputs that are computed from the sizes of images."""

    @staticmethod
    def of(model: nn.Module, example: Mapping[str, Any]) -> "ProcessorInputs":
        """Return what a model needs, given a mini-batch as its processor returns it."""
        tensors = {name: each for name, each in example.items() if isinstance(each, Tensor)}
        values = tuple(each for each in vision_values(model, tensors) if each.name not in tensors)
        found = ProcessorInputs(forms={}, values=values)
        samples = _samples(tensors)
        complete = found.completed(model, tensors)
        forms = {name: _form(name, each, samples) for name, each in complete.items() if isinstance(each, Tensor)}
        return ProcessorInputs(forms={name: form for name, form in forms.items() if form}, values=values)

    def completed(self, model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a mini-batch with the inputs that the model would compute in loops over its samples."""
        found = dict(batch)
        index = _index_of_positions(model)
        if index and "position_ids" not in batch and "mm_token_type_ids" in batch:
            known = signature(index).parameters.keys() & {name for name in batch if batch[name] is not None}
            found["position_ids"], _ = index(**{name: batch[name] for name in known})
        for value in self.values:
            if value.source in batch and value.name not in batch:
                found[value.name] = value.of(batch[value.source])
        return found

    def by_samples(self, model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a mini-batch with samples in front, with all inputs.

        Raises:
            InvalidInput: samples have different numbers of images, or images of different sizes.
        """
        if not self.forms:
            return dict(batch)
        samples = _samples({name: each for name, each in batch.items() if isinstance(each, Tensor)})
        _check_placeholders(model, batch)
        _check_sizes(batch, self.forms, samples)
        complete = self.completed(model, batch)
        for name, form in self.forms.items():
            if name in complete:
                complete[name] = by_samples(name, complete[name], form, samples)
            if name in complete and form == "cumulative":
                _check_alike(complete[name].sum(1), "rows", name)
        return complete


def _samples(tensors: Mapping[str, Tensor]) -> int:
    known = [tensors[name] for name in _OF_SAMPLES if name in tensors]
    return len(known[0]) if known else min((len(each) for each in tensors.values() if each.dim()), default=0)


def _form(name: str, tensor: Tensor, samples: int) -> str:
    # The form of an input; empty if its first dimension is samples, or if it fits no form.
    if "cu_" in name and name.endswith("seqlens"):
        return "cumulative"
    if name.endswith("_index") and _is_order(tensor):
        return "permutation"
    if name == "position_ids" and tensor.dim() == 3 and tensor.shape[1] == samples:
        return "second"
    return "joined" if tensor.dim() and len(tensor) > samples and not len(tensor) % samples else ""


def _is_order(tensor: Tensor) -> bool:
    # Whether each row of a larger tensor is named once.
    return torch.equal(tensor.flatten().sort().values, torch.arange(tensor.numel()).to(tensor))


def _index_of_positions(model: Any) -> Callable[..., tuple[Tensor, Tensor]] | None:
    # How a model computes the positions of words and of the patches among them.
    holders: Sequence[Any] = (model, getattr(model, "model", None))
    return next((found for each in holders if (found := getattr(each, "get_rope_index", None))), None)


def _check_placeholders(model: Any, batch: Mapping[str, Any]) -> None:
    words = batch.get("input_ids")
    for name in _PLACEHOLDERS:
        token = getattr(getattr(model, "config", None), name, None)
        if isinstance(words, Tensor) and isinstance(token, int):
            _check_alike((words == token).sum(1), f"placeholders ({name} {token})", "input_ids")


def _check_sizes(batch: Mapping[str, Any], forms: Mapping[str, str], samples: int) -> None:
    for name, sizes in batch.items():
        if name.endswith("grid_thw"):
            found = by_samples(name, sizes, "joined", samples) if name in forms else sizes[:, None]
            _check_alike(found.prod(-1).sum(1), "patches", name)


def _check_alike(counts: Tensor, what: str, name: str) -> None:
    if not torch.equal(counts, counts[:1].expand_as(counts)):
        other = int((counts != counts[0]).nonzero()[0])
        raise InvalidInput(
            f"sample 0 has {int(counts[0])} {what}, sample {other} has {int(counts[other])}",
            where=f"input '{name}'",
            remedy=_UNEQUAL,
        )
