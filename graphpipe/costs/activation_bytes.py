"""The bytes that a stage keeps between forward and backward, per sample."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

from graphpipe.costs.op_bytes import Array, OpBytes
from graphpipe.costs.recompute_regions import Recompute, regions
from graphpipe.costs.stage_memory import BetweenHalves
from graphpipe.graph import Read

_AWAY = -1
"""The number of the region that all offloaded operators of a stage are together."""


# No slots: what operators read is cached.
@dataclass(frozen=True)
class ActivationBytes:
    """Bytes per sample of the operators of a stage."""

    op_bytes: OpBytes
    samples: float = inf
    """Samples of one micro-batch on one device: they share what each forward keeps once (see `OpBytes.saved_of`)."""

    def saved(self, ops: Iterable[str], recompute: Recompute = "none", offload: tuple[str, ...] = ()) -> float:
        """Return what the operators of a stage keep per sample in flight on its device, besides what it received.

        This is what they save for the backward pass, with these exceptions:

        - A stage that recomputes in full keeps nothing.
        - A region of a stage keeps those of its outputs that are held anyway: by another region or another stage that
          reads them, or by an operator outside the regions that saves them (up to what was saved inside).
        - An operator outside the regions keeps what it saves, and at least those of its outputs that a region reads.
        - An operator that is offloaded keeps those of its outputs that are held anyway, as a region does. But offloaded
          operators do not hold outputs of each other.

        For inference, these are the outputs that the stage keeps until its consumers or the caller have taken them.

        Not counted are model inputs (rows of the mini-batch), what the loss function saves (unless it was profiled),
        random states (5 kB of a region with dropout) and copies of buffers that a forward changes.
        """
        inside = tuple(dict.fromkeys(ops))  # in a fixed order, because sums of floats depend on it
        key = ("saved", inside, self.samples, recompute, offload)
        return self.op_bytes.once(key, lambda: self._saved(inside, recompute, offload))

    def offloaded(self, ops: Iterable[str], recompute: Recompute, offload: tuple[str, ...]) -> float:
        """Return what the operators of a stage offload per sample in flight: what `saved` does not keep of them."""
        inside = tuple(dict.fromkeys(ops))
        if not offload:
            return 0.0
        return self._offloaded(inside, offload, self.kept_by_op(inside, recompute, offload))

    def saved_and_offloaded(
        self, ops: Iterable[str], recompute: Recompute, offload: tuple[str, ...]
    ) -> tuple[float, float]:
        """Return `saved` and `offloaded`, which follow from the same bytes of each operator."""
        if not offload or recompute == "full" or not self.op_bytes.trains:
            return self.saved(ops, recompute, offload), self.offloaded(ops, recompute, offload)
        inside = tuple(dict.fromkeys(ops))
        kept = self.kept_by_op(inside, recompute, offload)
        return sum(kept.values()), self._offloaded(inside, offload, kept)

    def _offloaded(self, inside: tuple[str, ...], offload: tuple[str, ...], kept: Mapping[str, float]) -> float:
        offloaded = [name for region in regions(inside, offload) for name in region]
        saved = dict(zip(offloaded, self._op_saved[self.op_bytes.positions(offloaded)].tolist(), strict=True))
        return sum(max(0.0, count - kept[name]) for name, count in saved.items())

    def _saved(self, inside: tuple[str, ...], recompute: Recompute, offload: tuple[str, ...]) -> float:
        if not self.op_bytes.trains:
            return sum(self.op_bytes.graph[name].output_bytes_per_sample for name in self._sending(inside))
        if recompute == "full":
            return 0.0
        if recompute == "none" and not offload:
            return float(self._op_saved[self.op_bytes.positions(inside)].sum())
        return sum(self.kept_by_op(inside, recompute, offload).values())

    def kept_by_op(self, inside: tuple[str, ...], recompute: Recompute, offload: tuple[str, ...]) -> dict[str, float]:
        """Return what each operator of a stage keeps per sample in flight (see `saved`)."""
        region_of = {name: number for number, region in enumerate(regions(inside, recompute)) for name in region}
        region_of |= {name: _AWAY for region in regions(inside, offload) for name in region}
        saved = dict(zip(inside, self._op_saved[self.op_bytes.positions(inside)].tolist(), strict=True))
        read: dict[tuple[str, str], float] = {}
        needed: dict[tuple[str, str], float] = {}
        for source in inside:
            own = region_of.get(source)
            for _, target, value, count in self._reads_of[source]:
                if (other := region_of.get(target)) != own:
                    stays = (other is None or other == _AWAY) and target in saved
                    read[value] = max(read.get(value, 0.0), count)
                    needed[value] = max(needed.get(value, 0.0), 0.0 if stays else count)
        plain = saved
        if self.op_bytes.has_casts:
            plain = dict(zip(inside, self.op_bytes.saved[self.op_bytes.positions(inside)].tolist(), strict=True))
        outputs = {name: [0.0, 0.0] for name in inside}
        for value, count in read.items():
            outputs[value[0]][0] += count
            outputs[value[0]][1] += needed[value]
        return {
            name: max(0.0 if name in region_of else saved[name], needs, min(plain[name], reads))
            for name, (reads, needs) in outputs.items()
        }

    def received(self, ops: Iterable[str]) -> float:
        """Return what a stage receives from others. An output that several of its operators read counts once."""
        inside = tuple(dict.fromkeys(ops))
        return self.op_bytes.once(("received", inside), lambda: self._received(inside))

    def _received(self, inside: tuple[str, ...]) -> float:
        stage, received = frozenset(inside), dict[tuple[str, str], float]()
        for name in inside:
            for source, _, value, count in self._reads[name]:
                if source not in stage:
                    received[value] = max(received.get(value, 0.0), count)
        return sum(received.values())

    def trunk(self, ops: Iterable[str]) -> frozenset[str]:
        """Return the operators of a stage through which gradients go back to values that it receives.

        The first half of a split backward runs through these, and the second half through the others.
        """
        graph, stage, found = self.op_bytes.graph, frozenset(ops), set[str]()
        for name in (name for name in graph.order if name in stage):
            for source, _, value, _ in self._reads[name]:
                if value not in graph.one_way and (source in found or source not in stage):
                    found.add(name)
        return frozenset(found)

    def between_halves(self, ops: Iterable[str], samples: float) -> BetweenHalves:
        """Return what a stage keeps between the two halves of a split backward. It neither recomputes nor offloads.

        What does not lead back to a received value is left to the second half: its operators keep all that they save,
        and the gradients that enter there. A received value stays if an operator with trained parameters reads it.

        Args:
            ops: of the stage.
            samples: of one micro-batch on one device.
        """
        inside = tuple(dict.fromkeys(ops))
        return self.op_bytes.once(("between halves", inside, samples), lambda: self._between_halves(inside, samples))

    def _between_halves(self, inside: tuple[str, ...], samples: float) -> BetweenHalves:
        all_own, all_received = self.saved(inside), self._received(inside)
        if (share := self.op_bytes.table.kept_for_weight_gradient) is not None:
            own, received = all_own * share, all_received * share
            return BetweenHalves(own=own, received=received, received_share=share, share=share, has_gradients=False)
        graph, stage, trunk = self.op_bytes.graph, frozenset(inside), self.trunk(inside)
        kept = dict[tuple[str, str], float]()
        for name in inside:
            for source, _, value, count in self._reads[name]:
                if source not in stage and name in graph.training:
                    kept[value] = max(kept.get(value, 0.0), count)
        positions = self.op_bytes.positions(inside)
        between = dict(zip(inside, self.op_bytes.between_halves_of(samples)[positions].tolist(), strict=True))
        saved = dict(zip(inside, self._op_saved[positions].tolist(), strict=True))
        own, received = 0.0, sum(kept.values())
        for name in inside:
            enters = name in graph.differentiable and not any(
                after in stage - trunk for after in graph.successors[name]
            )
            entering = self.op_bytes.returned_gradient[name] if enters else 0.0
            own += between[name] if name in trunk else saved[name] + entering
        return BetweenHalves(
            own=own,
            received=received,
            received_share=received / all_received if all_received else 0.0,
            share=(own + received) / (all_own + all_received) if all_own + all_received else 1.0,
        )

    def working(self, ops: Iterable[str]) -> float:
        """Return the most bytes per sample that a forward without gradients holds of its operators' outputs.

        An output is held from its operator to its last reader in the stage.
        """
        inside = tuple(dict.fromkeys(ops))
        return self.op_bytes.once(("working", inside), lambda: self._working(inside))

    def _working(self, inside: tuple[str, ...]) -> float:
        graph, stage = self.op_bytes.graph, frozenset(inside)
        left = {name: {other for other in graph.successors[name] if other in stage} for name in inside}
        held, most = dict[str, float](), 0.0
        for name in (name for name in graph.order if name in stage):
            held[name] = graph[name].output_bytes_per_sample
            most = max(most, sum(held.values()))
            for read in (name, *graph.predecessors[name]):
                if read in held:
                    left[read].discard(name)
                    if not left[read]:
                        del held[read]
        return most

    def _sending(self, inside: tuple[str, ...]) -> list[str]:
        """Return the operators whose output another stage reads, or that compute an output of the model."""
        stage, after = frozenset(inside), self.op_bytes.graph.successors
        return [name for name in inside if not after[name] or not stage.issuperset(after[name])]

    @cached_property
    def _op_saved(self) -> Array:
        return self.op_bytes.saved_of(self.samples)

    @cached_property
    def _reads(self) -> dict[str, list[Read]]:
        """What each operator reads."""
        reads: dict[str, list[Read]] = {op.name: [] for op in self.op_bytes.graph.ops}
        for read in self.op_bytes.graph.reads:
            reads[read.target].append(read)
        return reads

    @cached_property
    def _reads_of(self) -> dict[str, list[Read]]:
        """What others read of each operator."""
        reads: dict[str, list[Read]] = {op.name: [] for op in self.op_bytes.graph.ops}
        for read in self.op_bytes.graph.reads:
            reads[read.source].append(read)
        return reads

    def recomputed(self, ops: Iterable[str], recompute: Recompute) -> float:
        """Return what a backward recomputes and holds until it ends, besides what was kept.

        Regions are recomputed one at a time, so this is what the largest of them saves. A device runs one task at a
        time, so it needs these bytes once, for the samples of one micro-batch.
        """
        counts = (float(self._op_saved[self.op_bytes.positions(region)].sum()) for region in regions(ops, recompute))
        return max(counts, default=0.0)
