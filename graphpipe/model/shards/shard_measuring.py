"""Measures what sharing an operator saves and costs, without data.

The whole model and the part of one of two ranks are measured in the same way. Half of what ranks share is missing in
the latter.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import fx, nn

from graphpipe.graph import Op, OpShards, ParameterSlice, ShardFigures, SubmoduleShards, Work
from graphpipe.model.capture.build_ops import MeasuredModel, build_ops, tensor_names
from graphpipe.model.capture.capture import Captured, Traced
from graphpipe.model.capture.fused_attention import FusedAttention
from graphpipe.model.capture.reading import Reading
from graphpipe.model.capture.shape_propagation import propagate_shapes
from graphpipe.model.function_caches import without_caches
from graphpipe.model.quiet import quiet_export
from graphpipe.model.shards.counting_team import CountingTeam, Exchanged
from graphpipe.model.shards.layouts import most_ranks
from graphpipe.model.shards.shared_submodule import SharedSubmodule
from graphpipe.model.shards.trial import Call, disagrees
from graphpipe.model.split.submodules import sliced

_RANKS = 2
TRIED = 2e10
"""An operator with more FLOPs per sample is not tried on drawn values: it would take more than seconds."""


@dataclass(slots=True)
class ShardMeasuring:
    """Measures the operators of a model with the part of the first of two ranks in place of what they share."""

    model: nn.Module
    traced: Traced
    captured: Captured
    shared: Mapping[str, Sequence[SubmoduleShards]]
    team: CountingTeam = field(default_factory=CountingTeam)
    readings: Mapping[fx.Node, Reading] = field(default_factory=dict[fx.Node, Reading])
    """Of the nodes, as last measured."""
    pieces: dict[str, int] = field(default_factory=dict[str, int])
    """The parameters that are divided, with the dimension."""
    calls: dict[str, dict[str, Call]] = field(default_factory=dict[str, dict[str, Call]])
    """Arguments of the submodules that are called, by operator. Those of equal calls are noted once."""
    replaced: list[tuple[nn.Module, str, nn.Module]] = field(default_factory=list[tuple[nn.Module, str, nn.Module]])
    """Modules whose child was replaced, the child's name, and what it was."""

    def found(self) -> dict[str, OpShards]:
        """Return how each operator is shared, by its name."""
        whole = {op.name: op for op in self.captured.graph.ops}
        if not self._runs([*self.shared]) or self._disagree(whole):
            self.shared = self._that_agree(whole)
        halves = self._halves([*self.shared])
        sums = {name: self.team.exchanged(self._calls(name), self.readings) for name in self.shared}
        found = {name: self._shards(whole[name], halves[name], sums[name]) for name in self.shared}
        return {name: each for name, each in found.items() if each.most % 2 == 0}

    def restore(self) -> None:
        """Put the whole submodules back in place."""
        while self.replaced:
            parent, child, own = self.replaced.pop()
            setattr(parent, child, own)

    def _that_agree(self, whole: Mapping[str, Op]) -> dict[str, Sequence[SubmoduleShards]]:
        """Return what can be shared: if a forward does not run so, or computes something else, all but attention."""
        kinds: dict[Any, list[str]] = {}
        for name in self.shared:
            kinds.setdefault(self._kind(whole[name]), []).append(name)
        before, good = self.shared, dict[str, Sequence[SubmoduleShards]]()
        for names in kinds.values():
            for choose in (tuple, without_heads):
                self.shared = {name: choose(before[name]) for name in names}
                if not any(self.shared.values()):
                    break
                if self._runs(names) and not self._disagree(whole):
                    good |= self.shared
                    break
        return good

    def _runs(self, names: Sequence[str]) -> bool:
        try:
            halves = self._halves(names)
        except Exception:  # any error of a forward: one that cannot compute with a part of its layers
            return False
        sent = [(op.output_bytes_per_sample, halves[op.name].output_bytes_per_sample) for op in self.captured.graph.ops]
        return all(whole == half for whole, half in sent)  # what leaves an operator is whole

    def _disagree(self, whole: Mapping[str, Op]) -> bool:
        # Of operators that are alike, one is tried.
        tried = {self._kind(whole[name]): name for name in self.calls}.values()
        return any(self._disagrees(whole[name]) for name in tried)

    def _disagrees(self, op: Op) -> bool:
        shards, calls = self.shared[op.name], self.calls[op.name]
        tables = all(each.style.startswith("vocabulary") for each in shards)
        return (
            not tables
            and op.work.flops_per_sample <= TRIED
            and any(disagrees(self.model.get_submodule(path), path, shards, call) for path, call in calls.items())
        )

    def _replace(self, name: str, before: Collection[str]) -> None:
        traced, parameters = self.traced, dict(self.model.named_parameters(remove_duplicate=False))

        def slice_of(piece: ParameterSlice) -> nn.Parameter:
            self.pieces[piece.parameter] = piece.dimension
            whole = traced.fake.get_parameter(piece.parameter)
            view = sliced(whole.detach(), piece)
            return nn.Parameter(view, requires_grad=parameters[piece.parameter].requires_grad)

        made = SharedSubmodule(self.shared[name], self.team, slice_of)
        with traced.mode:
            for path in self._called(name):
                if path in before:  # several operators may call one submodule
                    continue
                parent, _, child = path.rpartition(".")
                root = made.make(traced.fake.get_submodule(path), path)
                own = traced.fake.get_submodule(path)
                if root is not own:
                    root.register_forward_pre_hook(partial(self._note, path), with_kwargs=True)
                    setattr(traced.fake.get_submodule(parent), child, root)
                    self.replaced.append((traced.fake.get_submodule(parent), child, own))

    def _note(self, path: str, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del root
        operators = (name for name in self.shared if self.team.node in self.captured.nodes[name])
        for name in operators:
            self.calls.setdefault(name, {})[path] = args, kwargs

    def _called(self, name: str) -> list[str]:
        return [*dict.fromkeys(str(each.target) for each in self._calls(name))]

    def _calls(self, name: str) -> list[Any]:
        return [node for node in self.captured.nodes[name] if node.op == "call_module"]

    def _halves(self, names: Sequence[str]) -> dict[str, Op]:
        """Return all operators as measured with the parts of a rank in these, which stay in place."""
        self.restore()
        self.pieces.clear()
        self.calls.clear()
        before = set[str]()
        for name in names:
            self._replace(name, before)
            before.update(self._called(name))
        traced, captured = self.traced, self.captured
        origin = captured.graph.origin
        attention = FusedAttention() if origin is not None and origin.fused_attention else None
        with traced.mode, quiet_export(), without_caches(traced.fake):
            self.readings = propagate_shapes(
                traced.module_graph,
                traced.fake,
                captured.graph.inputs,
                captured.precision,
                attention,
                self.team.begin,
            )
        half = MeasuredModel(
            module_graph=traced.module_graph,
            values=captured.values,
            readings=self.readings,
            module=traced.fake,
            parameter_names=tensor_names(traced.fake),
            fused_attention=attention is not None,
        )
        groups = tuple(captured.nodes[op.name] for op in captured.graph.ops)
        ops, _ = build_ops(half, groups, (), captured.precision)
        return {op.name: other for op, other in zip(captured.graph.ops, ops, strict=True)}

    def _kind(self, op: Op) -> Any:
        called = [str(node.target) for node in self._calls(op.name)]
        parts = tuple((each.submodule.removeprefix(called[0]), each.style) for each in self.shared[op.name])
        return op.kind, op.work, op.parameter_bytes, parts

    def _shards(self, op: Op, half: Op, sums: Exchanged) -> OpShards:
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        first = {id(each): name for name, each in self.model.named_parameters()}
        called = tuple(f"{path}." for path in self._called(op.name))
        divided = {name: at for name, at in self.pieces.items() if name.startswith(called)}
        pieces = {first[id(parameters[name])]: at for name, at in divided.items()}
        work, rest = op.work, half.work
        return OpShards(
            most=most_ranks(dict(self.model.named_modules()), self.shared[op.name]),
            submodules=tuple(self.shared[op.name]),
            parameters=tuple(sorted(pieces.items())),
            parameter_bytes=float(sum(parameters[name].numel() * parameters[name].element_size() for name in pieces)),
            figures=shared_figures(work, rest, sums),
        )


def without_heads(shards: Sequence[SubmoduleShards]) -> tuple[SubmoduleShards, ...]:
    """Return what is not in attention."""
    heads = [each.submodule for each in shards if each.style == "heads"]
    return tuple(each for each in shards if not any(f"{each.submodule}.".startswith(f"{path}.") for path in heads))


def shared_figures(whole: Work, half: Work, exchanged: Exchanged) -> ShardFigures:
    """Return what ranks share of an operator.

    Args:
        whole: of the operator.
        half: of one of two ranks.
        exchanged: what these exchange.
    """
    return ShardFigures(
        flops_per_sample=_shared(whole.flops_per_sample, half.flops_per_sample),
        traffic_bytes_per_sample=_shared(whole.traffic_bytes_per_sample, half.traffic_bytes_per_sample),
        saved_bytes_per_sample=_shared(whole.saved_bytes_per_sample, half.saved_bytes_per_sample),
        forward=exchanged["forward"],
        backward=exchanged["backward"],
        weights=exchanged["weights"],
    )


def _shared(whole: float, half: float) -> float:
    """Return what two ranks share of a figure of which one of them has `half`: half of it is missing there."""
    return min(whole, max(0.0, (whole - half) * _RANKS / (_RANKS - 1)))
