"""The tasks of one layer on one device in a segment: what they compute from what they read."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.model.halves.recorded_backward import Gradients, RecordedBackward, SavedInOrder
from graphpipe.model.halves.saved_layouts import Layout
from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.device.rng import derive_seed
from graphpipe.run.rounds.contents import Item, Results
from graphpipe.run.rounds.layer_copy import LayerCopy, Received
from graphpipe.run.rounds.record_layer import LOSS, by_edge, compare, kept_by, other_backward, roots_of
from graphpipe.run.stage.edge_values import gradient_of, is_none
from graphpipe.run.stage.loss import LossFunction, is_exact, sum_of
from graphpipe.run.stage.losses.sample_loss import is_power_of_two
from graphpipe.run.stage.micro_batch import Computed
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.receive_buffers import NamedTensors
from graphpipe.run.stage.stage_forward import StageForward
from graphpipe.run.stage.stage_replica_run import StageReplicaRun


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """A layer on a device, in one segment."""

    layer: LayerCopy
    loss_fn: LossFunction
    done: StageReplicaRun
    """Has the losses of the forwards, and the sums of their outputs."""

    def forward(
        self, micro_batch: int, inside: int, batch: MiniBatch, received: dict[int, NamedTensors]
    ) -> dict[Item, Tensor]:
        """Return the values that the forward sends, and what it has saved for the backward.

        Args:
            micro_batch: its number in the segment.
            inside: its number in the mini-batch.
            batch: the mini-batch.
            received: values, by edge.
        """
        layer, replica = self.layer, self.layer.replica
        for edge, by_name in received.items():
            for spec in batch.specs[edge]:
                by_name[spec.name].requires_grad_(spec.requires_grad)
        rows, weights = self._rows(inside, batch), dict[int, Tensor]()
        seed = derive_seed(*batch.key, layer.number, inside, 0)
        forward = StageForward(replica, received, rows, batch, self.loss_fn, seed, weights)
        handler = SavedInOrder()
        with handle_saved_tensors(handler):
            computed = forward.compute()
        if weights:
            raise InvalidInput(
                "returned a sum and its weight, and gradients that are computed apart do not wait for all weights",
                where="loss_fn",
                remedy="Give gp.WeightedLoss(loss_fn, weight=...), whose weights follow from the targets.",
            )
        self._note(computed, micro_batch, len(rows) / batch.size, check_finite=batch.check_finite)
        results: dict[Item, Tensor] = {("value", name): value.detach() for name, value in computed.outputs.items()}
        if (recorded := layer.recorded) is not None:
            kept = kept_by(layer, handler, roots := roots_of(computed))
            if is_power_of_two(batch.step):
                compare(layer, roots, by_edge(received), kept)
            kept |= _copies(recorded, recorded.for_weights(kept, layer.parameters))
            results |= {("kept", at): tensor for at, tensor in kept.items()}
        return results

    def first_half(
        self, inside: int, batch: MiniBatch, arrived: Mapping[int, Results], kept: Results, parameters: list[Tensor]
    ) -> tuple[dict[Item, Tensor], Gradients]:
        """Return the gradients that the input half sends, and those that it leaves to the weight half.

        Args:
            inside: number of the micro-batch in the mini-batch.
            batch: the mini-batch.
            arrived: gradients of outputs, by edge.
            kept: what the forward has saved.
            parameters: with the memory that the forward has read.
        """
        recorded, saved = self._recorded(), _kept(self._recorded(), kept)
        gradients = self._sum_over_consumers(arrived)
        if LOSS in recorded.roots:
            share = len(self._rows(inside, batch)) / batch.size
            loss = recorded.root_layouts[LOSS]
            device = self.layer.replica.device
            gradients[LOSS] = torch.full((), share * batch.loss_scale, dtype=loss.dtype, device=device)
        found, carried = recorded.first_half(gradients, saved, parameters)
        if [None if each is None else Layout.of(each) for each in carried] != recorded.carried:
            raise other_backward(self.layer)
        sent: dict[Item, Tensor] = {}
        for (edge, name), gradient in found.items():
            leaf = recorded.received[edge, name]
            leaf.grad = gradient
            sent["gradient", edge, name] = gradient_of(leaf)
            leaf.grad = None
        return sent, carried

    def for_weights(self, carried: Gradients, kept: Results, parameters: list[Tensor]) -> dict[Item, Tensor]:
        """Return what the weight half on another device reads, or later on this one."""
        recorded = self._recorded()
        sent: dict[Item, Tensor] = {("carried", at): each for at, each in enumerate(carried) if each is not None}
        own = _copies(recorded, recorded.for_weights(_kept(recorded, kept), parameters))
        return sent | {("kept", at): tensor for at, tensor in own.items()}

    def second_half(self, read: Results) -> None:
        """Add to the gradients of the parameters."""
        recorded = self._recorded()
        carried: Gradients = [
            None if layout is None else read["carried", at] for at, layout in enumerate(recorded.carried)
        ]
        recorded.second_half(carried, _kept(recorded, read))

    def _recorded(self) -> RecordedBackward[Received]:
        assert self.layer.recorded is not None
        return self.layer.recorded

    def _rows(self, inside: int, batch: MiniBatch) -> SampleRange:
        size = batch.micro_batches[self.layer.number]
        return SampleRange(inside * size, (inside + 1) * size)

    def _sum_over_consumers(self, arrived: Mapping[int, Results]) -> dict[str, Tensor]:
        # In ascending order of edges, as stages do. What was computed on this rank may have any strides.
        total: dict[str, Tensor] = {}
        for edge in sorted(arrived):
            for spec in self.layer.replica.program.sends[edge]:
                gradient = arrived[edge].get(("gradient", edge, spec.name))
                if gradient is not None:
                    total[spec.name] = total[spec.name] + gradient if spec.name in total else gradient
        roots = self._recorded().roots
        return {name: each.contiguous() for name, each in total.items() if name in roots and not is_none(each)}

    def _note(self, computed: Computed, micro_batch: int, share: float, *, check_finite: bool) -> None:
        outputs, _, loss = computed
        seen = [sum_of(value) for value in outputs.values() if not is_exact(value)] if check_finite else []
        if loss is not None:
            self.done.losses.append((loss.detach(), share))
            seen.append(loss.detach())
        if check_finite:
            self.done.sums[micro_batch] = seen


def _kept(recorded: RecordedBackward[Received], results: Results) -> dict[int, Tensor]:
    # Saved tensors that are outputs may have come as values.
    kept = {int(item[1]): tensor for item, tensor in results.items() if item[0] == "kept"}
    came = {at: results.get(("value", name)) for at, name in recorded.outputs.items() if at not in kept}
    return kept | {at: value for at, value in came.items() if value is not None}


def _copies(recorded: RecordedBackward[Received], kept: dict[int, Tensor]) -> dict[int, Tensor]:
    # Parts of parameters are copied, because an update may overwrite them.
    return {at: each.clone() if recorded.layouts[at].parameter else each for at, each in kept.items()}
