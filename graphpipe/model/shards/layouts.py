"""Finds how the ranks of a replica can share the submodules of a model.

In this order: styles by hand, the model's own plan (`transformers`), attention by the names of its layers, pairs of
linear layers with only elementwise operations between them, or of convolutions with operations of each channel, and the
tables of a vocabulary. A submodule gets the first layout that is found for it. What has none stays whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import gcd
from typing import Any, Literal, cast, get_args

from torch import nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import ShardStyle, SubmoduleShards
from graphpipe.model.shards.adapter_trial import can_be_divided
from graphpipe.model.shards.layers.adapted import adapted_of
from graphpipe.model.shards.layers.channels import channel_groups, is_convolution
from graphpipe.model.shards.layers.linears import inputs_of, is_linear, linear_at, outputs_of
from graphpipe.model.shards.linear_pairs import linear_pairs

Styles = Mapping[str, object]
"""Styles by pattern of submodules, such as `layers.*.mlp.up`: names of `ShardStyle`, those of `transformers`
(`colwise`), or objects of `torch.distributed.tensor.parallel` (`ColwiseParallel()`)."""

_STYLES: Mapping[str, ShardStyle] = {
    "colwise": "column",
    "rowwise": "row",
    "rowwise_rep": "row",
    "packed_colwise": "column",
    "colwise_rep": "vocabulary-columns",
    "colwise_gather_output": "vocabulary-columns",
    "embedding_rowwise": "vocabulary-rows",
    "replicated_with_grad_allreduce": "copied",
    "moe_tp_experts": "experts",
}
"""Names in plans of `transformers`."""
_ATTENTION: Sequence[tuple[tuple[str, ...], str, int]] = (
    (("q_proj", "k_proj", "v_proj"), "o_proj", 1),
    (("q_proj", "k_proj", "v_proj"), "out_proj", 1),
    (("q_proj", "k_proj", "v_proj"), "dense", 1),
    (("q", "k", "v"), "o", 1),
    (("self.query", "self.key", "self.value"), "output.dense", 1),
    (("attention.query", "attention.key", "attention.value"), "output.dense", 1),
    (("c_attn",), "c_proj", 3),
    (("qkv",), "proj", 3),
    (("project_in",), "project_out", 3),
)
"""Layers that make queries, keys and values, the layer behind attention, and how many of the former one layer makes."""
_LARGE = 1024
"""A vocabulary of this many words, or more, is shared by any power of two of ranks."""
_WIDTHS = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_width")
_HEADS = ("num_key_value_heads", "num_heads", "n_heads", "num_attention_heads", "heads", "n_head")

Layout = Mapping[str, SubmoduleShards]
"""By the path of a submodule."""


def find_layout(model: nn.Module, styles: Styles | None = None) -> Layout:
    """Return how ranks can share the submodules of a model.

    Args:
        model: with or without data.
        styles: by hand, which come first. `copied` leaves a submodule, and all in it, whole.

    Raises:
        InvalidInput: a pattern names no submodule, or a style is unknown or does not fit its submodule.
    """
    modules = dict(model.named_modules())
    found = _by_hand(modules, styles or {})
    left_whole = [path for path, shards in found.items() if shards.style == "copied"]
    left_whole += [path for path, part in modules.items() if "forward" in vars(part)]  # bound to the user's module
    adapters = _Adapters(modules)
    outside = {path: part for path, part in modules.items() if not adapters.inside(path)}
    for more in (
        _by_plan(outside),
        (each for path, part in outside.items() for each in _attention(path, part)),
        (each for path, part in outside.items() if path not in adapters.paths for each in _pairs(path, part)),
        _tables(outside),
    ):
        for layers in more:
            paths = {each.submodule for each in layers}
            taken = any(path in found or _inside(path, left_whole) for path in paths)
            taken = taken or any(_inside(path, [*adapters.paths & paths]) for path in found)
            divides = most_ranks(modules, layers) % 2 == 0
            if divides and not taken and all(map(adapters.can_be_divided, layers)):
                found |= {each.submodule: each for each in layers}
    return _consistent(modules, {path: each for path, each in found.items() if path not in left_whole})


class _Adapters:
    """The linear layers of a model that have adapters. Of those that are alike, one is tried."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.paths = {path for path, part in modules.items() if adapted_of(part) is not None}
        self._modules, self._tried = modules, dict[Any, bool]()

    def inside(self, path: str) -> bool:
        """Return whether a submodule is in such a layer."""
        return any(path[:at] in self.paths for at, sign in enumerate(path) if sign == ".")

    def can_be_divided(self, shards: SubmoduleShards) -> bool:
        """Return whether parts compute what such a layer does; a layer without adapters is none."""
        if shards.submodule not in self.paths:
            return True
        part = self._modules[shards.submodule]
        shapes = tuple((name, each.shape, each.dtype) for name, each in part.named_parameters())
        style: Literal["column", "row"] = "row" if shards.style == "row" else "column"
        kind = type(part), repr(part), shapes, style
        if kind not in self._tried:
            self._tried[kind] = can_be_divided(part, style)
        return self._tried[kind]


def most_ranks(modules: Mapping[str, nn.Module], shards: Sequence[SubmoduleShards]) -> int:
    """Return the most ranks that can share some submodules; 1 if they cannot be shared."""
    most = 0
    for each in shards:
        for size in _sizes(modules[each.submodule], each):
            most = gcd(most, size)
    return max(1, most)


def _sizes(part: Any, shards: SubmoduleShards) -> Iterator[int]:
    match shards.style:
        case "column":
            yield outputs_of(part) // shards.parts
        case "vocabulary-columns" | "vocabulary-logits":
            yield _rows(outputs_of(part))
        case "row":
            yield inputs_of(part)
        case "channels":
            yield channel_groups(part)
        case "vocabulary-rows":
            yield _rows(part.num_embeddings)
        case "heads":
            yield from _heads(part)
        case "experts":
            yield part.down_proj.shape[-1]
        case "copied":
            return


def _rows(count: int) -> int:
    # Parts of a vocabulary may differ by one, so that any number of ranks can share a large one.
    return count if count < _LARGE else _LARGE


def _heads(part: Any) -> Iterator[int]:
    owners = [part, *part.children()]
    width = next((getattr(each, name) for each in owners for name in _WIDTHS if hasattr(each, name)), None)
    for name in ("k_proj", "k", "self.key", "attention.key"):
        layer = linear_at(part, name)
        if layer is not None and isinstance(width, int):
            yield outputs_of(layer) // width
            return
    for each in owners:
        yield from (count for name in _HEADS if isinstance(count := getattr(each, name, None), int))


def _by_hand(modules: Mapping[str, nn.Module], styles: Styles) -> dict[str, SubmoduleShards]:
    found: dict[str, SubmoduleShards] = {}
    for pattern, style in styles.items():
        paths = [path for path in modules if fnmatchcase(path, pattern)]
        if not paths:
            raise InvalidInput(
                f"'{pattern}' matches no submodule", where="tensor styles", remedy=nearest(pattern, [*modules])
            )
        for path in paths:
            found[path] = SubmoduleShards(submodule=path, style=_style(style, modules[path], path))
    return found


def _style(style: object, part: nn.Module, path: str) -> ShardStyle:
    named = style if isinstance(style, str) else _of_torch(style)
    found = _STYLES.get(named, cast("ShardStyle", named))
    if found not in get_args(ShardStyle):
        raise InvalidInput(
            f"unknown style '{named}'",
            where=f"tensor style of '{path}'",
            remedy=nearest(named, [*get_args(ShardStyle), *_STYLES]),
        )
    if isinstance(part, nn.Embedding) and found == "row":
        found = "vocabulary-rows"
    needs = {
        **dict.fromkeys(("column", "row"), is_linear(part) or is_convolution(part)),
        **dict.fromkeys(("vocabulary-columns", "vocabulary-logits"), is_linear(part)),
        "channels": channel_groups(part) > 1,
        "vocabulary-rows": isinstance(part, nn.Embedding),
    }
    if not needs.get(found, True):
        raise InvalidInput(
            f"'{found}' does not fit {type(part).__name__}",
            where=f"tensor style of '{path}'",
            remedy="Name linear layers, convolutions and embeddings; a pattern may stand for several.",
        )
    return found


def _of_torch(style: object) -> str:
    # By name, because importing torch.distributed.tensor takes 0.2 s.
    kind = type(style).__name__
    whole = type(getattr(style, "output_layouts", (None,))[0]).__name__ == "Replicate" if kind != "str" else False
    return {"ColwiseParallel": "colwise_rep" if whole else "colwise", "RowwiseParallel": "rowwise"}.get(kind, kind)


def _by_plan(modules: Mapping[str, nn.Module]) -> Iterator[list[SubmoduleShards]]:
    # Plans of `transformers`: of the class of a model with a head, and of the configuration of its base.
    for path, part in modules.items():
        if not hasattr(part, "base_model_prefix"):
            continue
        named = dict(getattr(type(part), "_tp_plan", None) or {})
        if getattr(part, "base_model", None) is part:
            named |= getattr(getattr(part, "config", None), "base_model_tp_plan", None) or {}
        prefix = f"{path}." if path else ""
        by_parent: dict[str, list[SubmoduleShards] | None] = {}
        for pattern, style in named.items():
            for name in (name for name in modules if fnmatchcase(name, prefix + pattern)):
                parent, known = name.rpartition(".")[0], _STYLES.get(style)
                layers = by_parent.setdefault(parent, [])
                if known is None or not _fits(known, modules[name]):
                    by_parent[parent] = None  # its other layers rely on what this one does
                elif layers is not None:
                    parts = 2 if style == "packed_colwise" else 1
                    layers.append(SubmoduleShards(submodule=name, style=known, parts=parts))
        for parent, layers in by_parent.items():
            if layers and any(each.style != "copied" for each in layers):
                heads = any(each.submodule.endswith(("q_proj", "k_proj", "v_proj")) for each in layers)
                yield [*([SubmoduleShards(submodule=parent, style="heads")] if heads else []), *layers]


def _fits(style: ShardStyle, part: Any) -> bool:
    if style == "experts":
        return all(hasattr(part, name) for name in ("gate_up_proj", "down_proj", "num_experts"))
    return style == "copied" or is_linear(part) or (style == "vocabulary-rows" and isinstance(part, nn.Embedding))


def _attention(path: str, part: nn.Module) -> Iterator[list[SubmoduleShards]]:
    if type(part) is nn.MultiheadAttention:
        given: Any = part
        if given.in_proj_weight is not None and part.bias_k is None and not part.add_zero_attn:
            yield [SubmoduleShards(submodule=path, style="heads")]
        return
    for names, behind, parts in _ATTENTION:
        layers = [linear_at(part, name) for name in (*names, behind)]
        if all(layer is not None for layer in layers) and any(True for _ in _heads(part)):
            prefix = f"{path}." if path else ""
            columns = [SubmoduleShards(submodule=prefix + name, style="column", parts=parts) for name in names]
            row = SubmoduleShards(submodule=prefix + behind, style="row")
            yield [SubmoduleShards(submodule=path, style="heads"), *columns, row]
            return


def _pairs(path: str, part: nn.Module) -> Iterator[list[SubmoduleShards]]:
    prefix = f"{path}." if path else ""
    for columns, row, between in linear_pairs(part):
        yield [
            *(SubmoduleShards(submodule=prefix + name, style="column") for name in columns),
            *(SubmoduleShards(submodule=prefix + name, style="channels") for name in between),
            SubmoduleShards(submodule=prefix + row, style="row"),
        ]


def _tables(modules: Mapping[str, nn.Module]) -> Iterator[list[SubmoduleShards]]:
    # The largest embedding, and the linear layers with as many outputs: a vocabulary.
    tables = {path: part for path, part in modules.items() if type(part) is nn.Embedding and part.max_norm is None}
    rows = max((part.num_embeddings for part in tables.values() if not part.sparse), default=0)
    found = [
        SubmoduleShards(submodule=path, style="vocabulary-rows")
        for path, part in tables.items()
        if part.num_embeddings == rows and not part.sparse
    ]
    found += [
        SubmoduleShards(submodule=path, style="vocabulary-columns")
        for path, part in modules.items()
        if is_linear(part) and outputs_of(part) == rows
    ]
    yield from ([each] for each in found)


def _inside(path: str, others: Sequence[str]) -> bool:
    return any(path == other or (other and path.startswith(f"{other}.")) for other in others)


def _consistent(modules: Mapping[str, nn.Module], found: Mapping[str, SubmoduleShards]) -> Layout:
    # All submodules that have a parameter must share it in the same way, or none may share it.
    ways: dict[int, set[tuple[str, int]]] = {}
    adapted = {path: each for path in found if (each := adapted_of(modules[path])) is not None}
    for path, part in modules.items():
        if any(path.startswith(f"{other}.") for other in adapted):
            continue  # its parameters are those of the layer that has adapters
        shards = found.get(path)
        for name, parameter in part.named_parameters(recurse=path in adapted):
            way = ("", 1)
            if shards is not None and shards.style not in ("copied", "heads"):
                divided = path not in adapted or name in adapted[path].divided(shards.style)
                way = (_dimension(shards), shards.parts) if divided else way
            ways.setdefault(id(parameter), set()).add(way)
    mixed = {key for key, each in ways.items() if len(each) > 1}
    return {
        path: shards
        for path, shards in found.items()
        if not any(id(parameter) in mixed for parameter in modules[path].parameters(recurse=path in adapted))
    }


def _dimension(shards: SubmoduleShards) -> str:
    return "inputs" if shards.style == "row" else "outputs"
