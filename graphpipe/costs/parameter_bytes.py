"""The bytes of a stage's parameters, gradients and optimizer state, whole or sharded over its replicas."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import heapreplace

from graphpipe.costs.op_bytes import GATHERED_LAYERS, OpBytes, State


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Sums over the operators of a stage.

    A trainable parameter that several operators of a stage share counts once. Every stage that holds it has a copy.
    """

    op_bytes: OpBytes

    def weights(self, ops: Iterable[str]) -> float:
        """Return the bytes of the parameters."""
        inside = tuple(ops)
        return float(self.op_bytes.parameters[self.op_bytes.positions(inside)].sum()) - self.repeated(inside)

    def repeated(self, ops: Iterable[str]) -> float:
        """Return the bytes of shared trainable parameters that a sum over these operators counts more than once."""
        graph = self.op_bytes.graph
        inside = set(ops) if graph.shared else set[str]()
        counts = {tied: sum(op in inside for op in graph.holders[tied.name]) for tied in graph.shared}
        return sum(tied.bytes * max(0, count - 1) for tied, count in counts.items() if tied.trainable)

    def gradients(self, ops: Iterable[str], without: Collection[str] = ()) -> float:
        """Return the bytes of the gradients of all parameters except those named `without`."""
        inside, excluded = tuple(ops), frozenset(without)
        return self.op_bytes.once(
            ("gradients", inside, excluded), lambda: self._gradients(dict.fromkeys(inside), excluded)
        )

    def _gradients(self, inside: Collection[str], without: Collection[str]) -> float:
        graph = self.op_bytes.graph
        if not self.op_bytes.trains:
            return 0.0
        total = float(self.op_bytes.trainable[self.op_bytes.positions(inside)].sum()) - self.repeated(inside)
        excluded = (tied for tied in graph.shared if tied.trainable and tied.name in without)
        return total - sum(tied.bytes for tied in excluded if any(op in inside for op in graph.holders[tied.name]))

    def state(self, ops: Iterable[str]) -> float:
        """Return the bytes of whole parameters, gradients and optimizer state."""
        inside = tuple(ops)
        return self.op_bytes.once(("state", inside), lambda: self._state(dict.fromkeys(inside)))

    def _state(self, inside: Collection[str]) -> float:
        copies = self.op_bytes.table.state_bytes_per_parameter_byte if self.op_bytes.trains else 1.0
        repeated = self.repeated(inside) * copies
        return float(self.op_bytes.state[self.op_bytes.positions(inside)].sum()) - repeated

    def held(self, ops: Iterable[str], state: State, degree: int) -> float:
        """Return the bytes of parameters, gradients and optimizer state on the fullest replica of a stage.

        With `all`, every replica holds its shard and, during a step, the gathered weights. It also holds whole
        gradients. Before the first task the buffer of the gather is in their place, as large as the weights. With
        `layers`, it holds its shard of everything, and what the largest operator needs while it computes
        (`GATHERED_LAYERS`).

        Args:
            ops: of the stage.
            state: what the replicas shard.
            degree: the number of replicas.
        """
        inside = tuple(ops)
        if state == "whole" or degree == 1:
            return self.state(inside)
        slots, tied = self.op_bytes.slots_per_byte, self.tied(inside)
        if state == "optimizer":
            sharded = self.gradients(inside) - tied
            return self.state(inside) - slots * (sharded - self.largest_share(inside, degree))
        sharded, weights = self.gradients(inside) - tied, self.weights(inside) - tied
        per_byte = self.op_bytes.table.state_bytes_per_parameter_byte
        if state == "layers":
            largest = float(self.op_bytes.parameters[self.op_bytes.positions(inside)].max())
            return GATHERED_LAYERS * largest + (weights + (1 + slots) * sharded) / degree + tied * per_byte
        return 2 * weights + (weights + slots * sharded) / degree + tied * per_byte

    def updated(self, ops: Iterable[str], state: State, degree: int) -> float:
        """Return the bytes of the parameters that the busiest replica of a stage updates (see `held`)."""
        inside = tuple(ops)
        trainable = self.gradients(inside)
        if state == "whole":
            return trainable
        tied = self.tied(inside)
        return tied + (self.largest_share(inside, degree) if state == "optimizer" else (trainable - tied) / degree)

    def tied(self, ops: Iterable[str]) -> float:
        """Return the bytes of trainable parameters that other stages hold too, which replicas do not shard."""
        graph = self.op_bytes.graph
        inside = set(ops) if graph.shared else set[str]()
        held = ((tied, graph.holders[tied.name]) for tied in graph.shared if tied.trainable)
        return sum(tied.bytes for tied, ops in held if not inside.isdisjoint(ops) and not inside.issuperset(ops))

    def largest_share(self, ops: Iterable[str], degree: int) -> float:
        """Return the bytes of the parameters whose optimizer state the fullest of `degree` replicas keeps.

        Replicas share out whole parameters: the next largest goes to the replica with the fewest bytes, as torch's
        ZeroRedundancyOptimizer does it. The parameters of one operator count as one, because the graph does not have
        their sizes. If one parameter is most of a stage, sharing out therefore frees little.
        """
        inside = tuple(ops)
        return self.op_bytes.once(("share", inside, degree), lambda: self._largest_share(inside, degree))

    def _largest_share(self, inside: tuple[str, ...], degree: int) -> float:
        shares = [0.0] * degree
        for count in sorted(self._own(inside), reverse=True):
            heapreplace(shares, shares[0] + count)
        return max(shares)

    def _own(self, inside: tuple[str, ...]) -> list[float]:
        """Return the trainable bytes of each operator, without tied parameters and those counted before."""
        graph, op_bytes = self.op_bytes.graph, self.op_bytes
        own = dict(zip(inside, op_bytes.trainable[op_bytes.positions(inside)].tolist(), strict=True))
        for shared in (shared for shared in graph.shared if shared.trainable):
            holders = [op for op in graph.holders[shared.name] if op in own]
            for op in holders[len(holders) == len(graph.holders[shared.name]) :]:
                own[op] -= shared.bytes
        return list(own.values())
