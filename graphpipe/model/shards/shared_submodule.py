"""Makes the submodule that one rank runs where the ranks of a replica share it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

from torch import fx, nn

from graphpipe.graph import ParameterSlice, SequenceEntrance, SequenceModule, SubmoduleShards
from graphpipe.model.capture.capture import Captured
from graphpipe.model.shards.layers.adapted import Adapted, adapted_of, is_transposed
from graphpipe.model.shards.layers.channels import channels_of, is_convolution
from graphpipe.model.shards.layers.linears import inputs_of, outputs_of
from graphpipe.model.shards.layers.rebuilt import rebuilt, without_parameters
from graphpipe.model.shards.layers.shared_attention import SharedAttention, SharedBiasAttention
from graphpipe.model.shards.layers.shared_layers import ColumnLinear, RowLinear, VocabularyRows
from graphpipe.model.shards.layers.shared_modules import CopiedInside, SharedExperts
from graphpipe.model.shards.layers.shared_norm import ChannelNorm
from graphpipe.model.shards.layers.shared_parts import LayerParts, PartColumns, PartRows, adapter_parts
from graphpipe.model.shards.sequence.divided_nodes import divided_nodes, held_by
from graphpipe.model.shards.sequence.exchange import BETWEEN, GATHERED
from graphpipe.model.shards.sequence.on_shards import Converted, Gathered, OnShards
from graphpipe.model.shards.team import AROUND, Entrance, ShardTeam, own_range
from graphpipe.model.split.submodules import Conversion, DividedNodes

SliceOf = Callable[[ParameterSlice], nn.Parameter]
"""Returns the parameter that a rank trains for a slice of the user's: the same one for the same slice."""
_DIVIDED = (
    *("heads", "num_heads", "n_heads", "num_attention_heads", "n_head", "num_key_value_heads", "num_kv_heads"),
    *("split_size", "all_head_size", "inner_dim"),
)
"""Numbers in modules of attention that count heads, or their widths together."""


@final
class SharedSubmodule:
    """Makes the part of a submodule that a rank of a team runs.

    Args:
        shards: of the operator that calls the submodule.
        team: the ranks.
        slice_of: of the user's parameters.
        sequence: the submodules that can be called with shards of the sequence, if ranks divide it.
        left_whole: names of parameters whose gradients ranks must have whole.
    """

    def __init__(
        self,
        shards: Sequence[SubmoduleShards],
        team: ShardTeam,
        slice_of: SliceOf,
        sequence: Sequence[SequenceModule] = (),
        left_whole: Collection[str] = (),
    ) -> None:
        self._shards: Mapping[str, SubmoduleShards] = {each.submodule: each for each in shards}
        self._team, self._slice_of, self._border = team, slice_of, AROUND
        self._gathering: frozenset[str] = frozenset()
        self._sequence = {each.submodule: each for each in sequence}
        self._left_whole = left_whole
        self._divided: dict[SequenceEntrance, SharedSubmodule] = {}
        self._on_shards: dict[str, nn.Module] = {}
        self._entrances: dict[str, Entrance] = {}
        self._known: dict[int, nn.Module] = {}
        self._draws = False
        self.made: list[tuple[nn.Module, nn.Module]] = []
        """Modules of the user, and those that stand for them, whose modes must follow."""

    def make(self, module: nn.Module, path: str) -> nn.Module:
        """Return what stands for a submodule, which is the submodule itself if ranks share nothing of it."""
        if id(module) not in self._known:
            before = self._draws
            self._draws = before or has_dropout(module)
            self._known[id(module)] = self._make(module, path)
            self._draws = before
        return self._known[id(module)]

    def divide(self, captured: Captured, model: nn.Module, nodes: Sequence[fx.Node]) -> DividedNodes:
        """Return how some nodes divide the sequence: those of a stage, in order of execution.

        Raises:
            InvalidInput: as `divided_nodes`.
        """
        if not self._sequence:
            return DividedNodes()
        shared = {
            path for path in self._sequence if any(each == path or each.startswith(f"{path}.") for each in self._shards)
        }
        held = held_by(model, captured.module_graph)
        return divided_nodes(
            nodes, captured.readings, self._sequence, shared, self._team.size, held, left_whole=self._left_whole
        )

    def make_on_shards(self, module: nn.Module, path: str) -> nn.Module:
        """Return what stands for a submodule that is called with shards of the sequence."""
        if path not in self._on_shards:
            part = self._between(self._sequence[path].entrance).make(module, path)
            self._on_shards[path] = self._noted(module, OnShards(part, self._team, draws=has_dropout(module)))
        return self._on_shards[path]

    def _between(self, entrance: SequenceEntrance) -> "SharedSubmodule":
        # Makes the parts of submodules that are called with shards.
        if entrance not in self._divided:
            made = SharedSubmodule([*self._shards.values()], self._team, self._slice_of)
            made._border, made.made = BETWEEN, self.made
            made._gathering = gathering(self._shards.values()) if entrance == "modules" else frozenset()
            self._divided[entrance] = made
        return self._divided[entrance]

    def own_draws(self) -> AbstractContextManager[None]:
        """Draw other random numbers than the other ranks in a block."""
        return self._team.own_draws()

    def converted(self, how: Conversion) -> nn.Module:
        """Return the module that scatters whole values, or gathers shards."""
        return Converted(how, self._team)

    def _make(self, module: nn.Module, path: str) -> nn.Module:
        shards = self._shards.get(path)
        if shards is not None and shards.style != "heads":
            return self._noted(module, self._layer(module, path, shards))
        if shards is not None and isinstance(module, nn.MultiheadAttention):
            return self._noted(module, self._attention(module, path))
        border = self._border
        self._border = GATHERED if path in self._gathering else border
        changed = {
            name: made
            for name, child in module.named_children()
            if (made := self.make(child, f"{path}.{name}" if path else name)) is not child
        }
        self._border = border
        if not changed and shards is None:
            return module
        made = rebuilt(module, changed)
        if shards is not None:
            for part in (made, *changed.values()):  # these are new, and none of the user's
                self._divide(part.module if isinstance(part, Gathered) else part)
            if hasattr(module, "has_relative_attention_bias"):
                heads: Any = module
                made = SharedBiasAttention(self._noted(module, made), heads.n_heads, self._team)
        noted = self._noted(module, made)
        return Gathered(noted, self._team) if path in self._gathering else noted

    def _noted(self, module: nn.Module, made: nn.Module) -> nn.Module:
        made.training = module.training
        self.made.append((module, made))
        return made

    def _divide(self, part: nn.Module) -> None:
        for name in _DIVIDED:
            number = vars(part).get(name)
            if isinstance(number, int) and number % self._team.size == 0:
                setattr(part, name, number // self._team.size)

    def _layer(self, module: Any, path: str, shards: SubmoduleShards) -> nn.Module:
        adapted = adapted_of(module)
        if adapted is not None:
            return self._adapted(module, path, shards, adapted)
        if is_convolution(module):
            return self._convolution(module, path, row=shards.style == "row")
        match shards.style:
            case "column" | "vocabulary-columns" | "vocabulary-logits":
                joined = None if shards.style == "column" else outputs_of(module)
                turned = is_transposed(module)
                weights = self._parts(f"{path}.weight", int(turned), outputs_of(module), shards.parts)
                has_bias = module.bias is not None
                biases = self._parts(f"{path}.bias", 0, outputs_of(module), shards.parts) if has_bias else ()
                draws = self._draws_behind(joined)
                return ColumnLinear(
                    weights,
                    biases,
                    self._entrance(path),
                    transposed=turned,
                    joined=joined,
                    read_by_loss=shards.style == "vocabulary-logits",
                    draws=draws,
                )
            case "row":
                return self._row(module, path)
            case "vocabulary-rows":
                piece = self._piece(f"{path}.weight", 0, 0, module.num_embeddings)
                return VocabularyRows(module, self._slice_of(piece), piece, self._team, self._border)
            case "channels":
                return self._channels(module, path)
            case "experts":
                width = module.down_proj.shape[-1]
                gate, up = self._parts(f"{path}.gate_up_proj", 1, 2 * width, 2)
                (down,) = self._parts(f"{path}.down_proj", 2, width, 1)
                return SharedExperts(module, gate, up, down, self._team, self._border)
            case "copied":
                return CopiedInside(module, self._team)
            case "heads":
                raise AssertionError("made from its layers")

    def _draws_behind(self, joined: int | None) -> bool:
        return self._draws and joined is None and self._border.draws_alike

    def _row(self, module: Any, path: str) -> RowLinear:
        turned = is_transposed(module)
        (weight,) = self._parts(f"{path}.weight", 0 if turned else 1, inputs_of(module), 1)
        return RowLinear(weight, module.bias, self._team, self._border, transposed=turned)

    def _adapted(self, module: nn.Module, path: str, shards: SubmoduleShards, adapted: Adapted) -> nn.Module:
        row, drops = shards.style == "row", has_dropout(module)
        length, count = (adapted.inputs, 1) if row else (adapted.outputs, shards.parts)

        def parts_of(name: str, dimension: int) -> tuple[nn.Parameter, ...]:
            return self._parts(f"{path}.{name}", dimension, length, count)

        parts = adapter_parts(module, adapted, shards.style, parts_of, self._team, self._noted)
        if row:
            bias = None if adapted.bias is None else module.get_parameter(adapted.bias)
            return PartRows(parts, bias, self._team, self._border, drops=drops)
        joined = None if shards.style == "column" else adapted.outputs
        return PartColumns(
            parts,
            self._entrance(path),
            joined=joined,
            read_by_loss=shards.style == "vocabulary-logits",
            drops=drops,
            draws=self._draws_behind(joined),
        )

    def _convolution(self, module: Any, path: str, *, row: bool) -> nn.Module:
        inner, has_bias = without_parameters(module), module.bias is not None
        if row:
            weight = self._parts(f"{path}.weight", 1, inputs_of(module), 1)
            parts = LayerParts(inner, {"weight": (weight, 1)}, {}, ["bias"] if has_bias else [], self._team)
            return PartRows(parts, module.bias, self._team, self._border, behind=module.weight.ndim - 2)
        names = ("weight", "bias") if has_bias else ("weight",)
        divided = {name: (self._parts(f"{path}.{name}", 0, outputs_of(module), 1), 0) for name in names}
        parts = LayerParts(inner, divided, {}, [], self._team)
        return PartColumns(parts, self._entrance(path), draws=self._draws_behind(None))

    def _channels(self, module: Any, path: str) -> nn.Module:
        names = [name for name, _ in module.named_parameters(recurse=False)]
        divided = {name: self._parts(f"{path}.{name}", 0, channels_of(module), 1) for name in names}
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            weight, bias = (divided[name][0] if name in divided else None for name in ("weight", "bias"))
            return ChannelNorm(module, weight, bias, self._team)
        inner = without_parameters(module)
        for name in ("groups", "num_groups", "num_channels", "in_channels", "out_channels"):
            if hasattr(inner, name):
                setattr(inner, name, getattr(inner, name) // self._team.size)
        return LayerParts(inner, {name: (parts, 0) for name, parts in divided.items()}, {}, [], self._team)

    def _attention(self, module: nn.MultiheadAttention, path: str) -> nn.Module:
        width = module.embed_dim
        weights = self._parts(f"{path}.in_proj_weight", 0, 3 * width, 3)
        given: Any = module  # torch does not say that there may be no bias
        biases = () if given.in_proj_bias is None else self._parts(f"{path}.in_proj_bias", 0, 3 * width, 3)
        behind = self._noted(module.out_proj, self._row(module.out_proj, f"{path}.out_proj"))
        assert isinstance(behind, RowLinear)
        return SharedAttention(module, weights, biases, behind, Entrance(self._team, self._border, readers=3))

    def _entrance(self, path: str) -> Entrance:
        # Layers of one module often read the same values.
        entrance = self._entrances.setdefault(path.rpartition(".")[0], Entrance(self._team, self._border))
        entrance.readers += 1
        return entrance

    def _parts(self, parameter: str, dimension: int, length: int, parts: int) -> tuple[nn.Parameter, ...]:
        whole = length // parts
        return tuple(self._slice_of(self._piece(parameter, dimension, at * whole, whole)) for at in range(parts))

    def _piece(self, parameter: str, dimension: int, start: int, length: int) -> ParameterSlice:
        first, stop = own_range(length, self._team.size, self._team.position)
        return ParameterSlice(parameter=parameter, dimension=dimension, start=start + first, stop=start + stop)


def gathering(shards: Iterable[SubmoduleShards]) -> frozenset[str]:
    """Return the submodules that hold columns, and so begin what ranks share."""
    return frozenset(each.submodule.rpartition(".")[0] for each in shards if each.style == "column")


def has_dropout(module: nn.Module) -> bool:
    """Return whether a forward in training may drop values: a dropout, or a rate in an attribute."""
    rates = (value for part in module.modules() for name, value in vars(part).items() if "drop" in name or name == "p")
    return any(isinstance(value, float) and value > 0 for value in rates)
