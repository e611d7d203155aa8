"""The bytes of a stage's parameters, gradients and optimizer state."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from graphpipe.costs.op_bytes import OpBytes


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Sums over the operators of a stage.

    A trainable parameter that several operators of a stage share counts once. Every stage that holds it has a copy.
    """

    each: OpBytes

    def weights(self, ops: Iterable[str]) -> float:
        """Return the bytes of the parameters."""
        inside = tuple(ops)
        return float(self.each.parameters[self.each.positions(inside)].sum()) - self.repeated(inside)

    def repeated(self, ops: Iterable[str]) -> float:
        """Return the bytes of shared trainable parameters that a sum over these operators counts more than once."""
        graph = self.each.graph
        inside = set(ops) if graph.shared else set[str]()
        counts = {each: sum(op in inside for op in graph.holders[each.name]) for each in graph.shared}
        return sum(each.bytes * max(0, count - 1) for each, count in counts.items() if each.trainable)

    def gradients(self, ops: Iterable[str], without: Collection[str] = ()) -> float:
        """Return the bytes of the gradients of all parameters except those named `without`."""
        inside, excluded = tuple(ops), frozenset(without)
        return self.each.once(("gradients", inside, excluded), lambda: self._gradients(dict.fromkeys(inside), excluded))

    def _gradients(self, inside: Collection[str], without: Collection[str]) -> float:
        graph = self.each.graph
        total = float(self.each.trainable[self.each.positions(inside)].sum()) - self.repeated(inside)
        excluded = (each for each in graph.shared if each.trainable and each.name in without)
        return total - sum(each.bytes for each in excluded if any(op in inside for op in graph.holders[each.name]))

    def state(self, ops: Iterable[str]) -> float:
        """Return the bytes of parameters, gradients and optimizer state, which every replica holds in full."""
        inside = tuple(ops)
        return self.each.once(("state", inside), lambda: self._state(dict.fromkeys(inside)))

    def _state(self, inside: Collection[str]) -> float:
        repeated = self.repeated(inside) * self.each.table.state_bytes_per_parameter_byte
        return float(self.each.state[self.each.positions(inside)].sum()) - repeated
