"""A model of `Trainer`, captured for a pipeline: its inputs, its loss, and its outputs in an evaluation.

The loss is one of these:

    labels, and `Trainer.compute_loss` as it is     the model's own, counted over the whole mini-batch
    no labels, and the model returns a loss         that entry of its outputs (CLIP with return_loss)
    label smoothing, `compute_loss_func`, or        `compute_loss` of the trainer, called with the pipeline's outputs
    a `compute_loss` of a subclass                  in place of the model's
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from graphpipe.graph import Precision
from graphpipe.model.own_loss.from_transformers import LABELS, TransformersModel, from_transformers
from graphpipe.run.stage.tensor_tree import map_tensors

LossOfOutputs = Callable[[Mapping[str, Any], dict[str, Any], Any], Tensor]
"""The trainer's loss of outputs, inputs and the number of items in the mini-batch."""
_SAMPLES, _ITEMS = "graphpipe: samples", "graphpipe: items"


@dataclass(slots=True, kw_only=True)
class TrainedModel:
    """A captured model with its loss."""

    captured: TransformersModel
    compute_loss: LossOfOutputs | None
    """The trainer's loss. None: the model's own."""
    counts_items: bool
    """Whether the model's own loss is a sum, divided by the number of items that the trainer counts."""
    _divides: bool | None = field(default=None)
    """Whether the trainer's loss divides a sum by the number of items. None: not known yet."""

    @staticmethod
    def of(
        model: nn.Module,
        example: Mapping[str, Any],
        compute_loss: LossOfOutputs | None,
        *,
        labels: Sequence[str],
        outputs: Sequence[str],
        precision: Precision,
        takes_items: bool,
    ) -> "TrainedModel":
        """Capture a model.

        Args:
            model: of the trainer.
            example: a mini-batch.
            compute_loss: of the trainer; None if the model's own loss is trained.
            labels: names of inputs that only the loss reads.
            outputs: entries of the model's output to return in an evaluation, beside those that the loss reads.
            precision: of the forwards in training.
            takes_items: whether the trainer gives the model's forward the number of items.

        Raises:
            InvalidInput: as `from_transformers`, or there are neither labels nor a loss without them.
        """
        names = tuple(dict.fromkeys((*LABELS, *labels)))
        given = dict(example)
        if compute_loss is not None:
            given = {name: each for name, each in given.items() if name not in names}
        elif not any(name in given for name in names):
            outputs = ("loss", *outputs)
        with _noting_loss_function(model) as calls:
            captured = from_transformers(model, given, outputs=outputs, labels=names, precision=precision)
        return TrainedModel(captured=captured, compute_loss=compute_loss, counts_items=takes_items and bool(calls))

    def batch(self, inputs: Mapping[str, Any], items: Any = None) -> tuple[dict[str, Tensor], Any]:
        """Return inputs and targets of a mini-batch for the pipeline.

        Args:
            inputs: as the data collator returns them.
            items: the number of items in the mini-batch, which the loss may divide by.
        """
        own, targets = self.captured.batch(inputs)
        samples = len(next(iter(own.values())))
        if self.compute_loss is None:
            if targets is not None and items is not None and self.counts_items:
                targets["counts"] = torch.full_like(targets["counts"], float(items) / samples)
            return own, {} if targets is None else targets
        rows = {
            name: each for name, each in inputs.items() if isinstance(each, Tensor) and each.shape[:1] == (samples,)
        }
        sizes = torch.full((samples,), samples, dtype=torch.int64)
        if items is not None:
            rows[_ITEMS] = torch.as_tensor(items, dtype=torch.float64).cpu().expand(samples)
        return own, {**rows, _SAMPLES: sizes}

    def evaluated_batch(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Return the inputs of a batch for an evaluation, and its targets, if it has labels and they are wanted."""
        loss = self.captured.loss
        if self.compute_loss is None and (loss is None or all(inputs.get(name) is not None for name in loss.labels)):
            return self.batch(inputs, inputs.get("num_items_in_batch"))
        return replace(self.captured, loss=None).batch(inputs)

    def loss_fn(self, outputs: Mapping[str, Any], targets: Mapping[str, Any]) -> Tensor:
        """Return the loss of some samples, which the pipeline multiplies by their share of the mini-batch."""
        if self.compute_loss is None:
            return self.captured.loss_fn(outputs, targets) if self.captured.loss is not None else outputs["loss"]
        inputs = {name: each for name, each in targets.items() if name not in (_SAMPLES, _ITEMS)}
        items = targets[_ITEMS][0] if _ITEMS in targets else None
        loss = self.compute_loss(outputs, dict(inputs), items)
        if items is None:
            return loss
        if self._divides is None:
            self._divides = self._divides_by_items(outputs, inputs, items, loss)
        # A sum of these rows, divided by the items of all, is a share of the loss already.
        return loss * (int(targets[_SAMPLES][0]) / len(targets[_SAMPLES])) if self._divides else loss

    def outputs_of(self, loss: float | None, outputs: Any, device: torch.device) -> dict[str, Any]:
        """Return what the model returns in an evaluation: its loss first, if it computes one, then its outputs."""
        found = dict(outputs) if isinstance(outputs, Mapping) else {"logits": outputs}
        found = map_tensors(found, lambda tensor: tensor.to(device))
        return found if loss is None else {"loss": torch.tensor(loss, device=device), **found}

    def _divides_by_items(self, outputs: Any, inputs: Mapping[str, Any], items: Tensor, loss: Tensor) -> bool:
        assert self.compute_loss is not None
        with torch.no_grad():
            half = self.compute_loss(map_tensors(outputs, Tensor.detach), dict(inputs), 2 * items)
        return bool(torch.isclose(half * 2, loss.detach(), rtol=1e-3)) and not bool(torch.isclose(half, loss.detach()))


@contextmanager
def _noting_loss_function(model: nn.Module) -> Generator[list[str]]:
    # While inside, the list gets an entry whenever a forward takes its loss from `loss_function`, as models do that
    # pass on the number of items. Others compute a mean, whatever the trainer gives them.
    calls: list[str] = []
    models = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    parts = [part for part in models if "_loss_function" not in vars(part)]

    def noting(part: PreTrainedModel) -> Callable[..., Any]:
        def noted(*given: Any, **more: Any) -> Any:
            calls.append(type(part).__name__)
            vars(part).pop("_loss_function")
            try:
                return part.loss_function(*given, **more)
            finally:
                part.loss_function = noted

        return noted

    for part in parts:
        part.loss_function = noting(part)
    try:
        yield calls
    finally:
        for part in parts:
            vars(part).pop("_loss_function")
