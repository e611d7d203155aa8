"""The bytes that a stage keeps between forward and backward, per sample."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from graphpipe.costs.op_bytes import OpBytes
from graphpipe.costs.recompute_regions import Recompute, regions


# No slots: what operators read is cached.
@dataclass(frozen=True)
class ActivationBytes:
    """Bytes per sample of the operators of a stage."""

    each: OpBytes

    def saved(self, ops: Iterable[str], recompute: Recompute = "none") -> float:
        """Return what the operators of a stage keep per sample in flight, besides what the stage received.

        This is what they save for the backward pass, with these exceptions:

        - A stage that recomputes in full keeps nothing.
        - A region of a stage keeps those of its outputs that are held anyway: by another region or another stage that
          reads them, or by an operator outside the regions that saves them (up to what was saved inside).
        - An operator outside the regions keeps what it saves, and at least those of its outputs that a region reads.

        Not counted are model inputs (rows of the mini-batch), what the loss function saves (unless it was profiled),
        random states (5 kB of a region with dropout) and copies of buffers that a forward changes.
        """
        inside = tuple(dict.fromkeys(ops))  # in a fixed order, because sums of floats depend on it
        return self.each.once(("saved", inside, recompute), lambda: self._saved(inside, recompute))

    def _saved(self, inside: tuple[str, ...], recompute: Recompute) -> float:
        if recompute == "full":
            return 0.0
        if recompute == "none":
            return float(self.each.saved[self.each.positions(inside)].sum())
        return self._saved_with_regions(inside, recompute)

    def _saved_with_regions(self, inside: tuple[str, ...], recompute: Recompute) -> float:
        region_of = {name: number for number, region in enumerate(regions(inside, recompute)) for name in region}
        saved = dict(zip(inside, self.each.saved[self.each.positions(inside)].tolist(), strict=True))
        kept = {name: 0.0 if name in region_of else saved[name] for name in inside}
        for edge in self.each.graph.edges:
            source, target = edge.source, edge.target
            if source in region_of and region_of.get(target) != region_of[source]:
                plain = target in saved and target not in region_of
                held = min(saved[source], edge.bytes_per_sample) if plain else edge.bytes_per_sample
                kept[source] = max(kept[source], held)
            elif source in saved and source not in region_of and target in region_of:
                kept[source] = max(kept[source], edge.bytes_per_sample)
        return sum(kept.values())

    def received(self, ops: Iterable[str]) -> float:
        """Return what a stage receives from others. An output that several of its operators read counts once."""
        inside = tuple(dict.fromkeys(ops))
        return self.each.once(("received", inside), lambda: self._received(inside))

    def _received(self, inside: tuple[str, ...]) -> float:
        stage, received = frozenset(inside), dict[str, float]()
        for name in inside:
            for source, count in self._reads[name]:
                if source not in stage:
                    received[source] = max(received.get(source, 0.0), count)
        return sum(received.values())

    @cached_property
    def _reads(self) -> dict[str, list[tuple[str, float]]]:
        """By operator: the operators that it reads, with the bytes per sample."""
        found: dict[str, list[tuple[str, float]]] = {op.name: [] for op in self.each.graph.ops}
        for edge in self.each.graph.edges:
            found[edge.target].append((edge.source, edge.bytes_per_sample))
        return found

    def recomputed(self, ops: Iterable[str], recompute: Recompute) -> float:
        """Return what a backward recomputes and holds until it ends, besides what was kept.

        Regions are recomputed one at a time, so this is what the largest of them saves. A device runs one task at a
        time, so it needs these bytes once, for the samples of one micro-batch.
        """
        each = (float(self.each.saved[self.each.positions(region)].sum()) for region in regions(ops, recompute))
        return max(each, default=0.0)
