"""Builds a tiny model of Hugging Face with random weights, and an example batch, from its row of the table."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from bench.families.inputs import drawn
from bench.families.table import FAMILIES, KNOWN_SIZES, Row

library: Any = transformers
"""Its configurations are not typed as they are called."""
PER_LAYER = ("layer_types", "mlp_layer_types", "indexer_types", "per_layer_config")
"""Attributes with one entry for each of the usual number of layers."""


def build_family(name: str, **sizes: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a tiny model of a family with random weights, and an example batch.

    Args:
        name: a row of `FAMILIES`.
        sizes: of its configuration, instead of those of the row.
    """
    row = replace(FAMILIES[name], sizes={**FAMILIES[name].sizes, **sizes})
    kind = getattr(library, row.model)
    model: nn.Module = getattr(kind, "from_config", kind)(configuration(row.family, row.sizes, exact=row.exact))
    _fill(model, row)
    inputs = drawn(row.inputs)
    if row.runs_before:
        model(**inputs)
    return model, inputs


def configuration(family: str, sizes: Mapping[str, Any], *, exact: bool) -> Any:
    """Return the configuration of a family.

    Args:
        family: as transformers calls it.
        sizes: its attributes. One with a `family` is a configuration by itself, any other mapping has sizes of a part.
        exact: nothing is added. Otherwise the configuration also has the known sizes, also in its parts.
    """
    kind = library.CONFIG_MAPPING[family]
    given: dict[str, Any] = {key: _nested(size) for key, size in sizes.items()}
    return kind(**given) if exact else _tiny(kind, given)


def _nested(size: Any) -> Any:
    if not isinstance(size, dict) or "family" not in size:
        return deepcopy(size)  # configurations add to what they are given
    rest = {key: each for key, each in size.items() if key not in ("family", "exact")}
    return configuration(size["family"], rest, exact=size.get("exact", False))


def _tiny(kind: type[Any], given: Mapping[str, Any]) -> Any:
    # With those of the known sizes that the configuration has, and without dropout.
    plain = kind()
    renamed: dict[str, str] = getattr(plain, "attribute_map", {})
    known = {key: size for key, size in KNOWN_SIZES.items() if _has(plain, key) and key not in renamed}
    known |= {target: KNOWN_SIZES[key] for key, target in renamed.items() if key in KNOWN_SIZES}
    sizes: dict[str, Any] = {key: size for key, size in known.items() if _is_settable(plain, key)}
    sizes |= {key: 0.0 for key, size in vars(plain).items() if "drop" in key and isinstance(size, float)}
    sizes |= {key: None for key in PER_LAYER if vars(plain).get(key) and _is_settable(plain, key, lists=True)}
    parts = {key: getattr(plain, key, None) for key in getattr(kind, "sub_configs", {})}
    parts = {key: part for key, part in parts.items() if part is not None and isinstance(given.get(key, {}), dict)}
    sizes |= {key: _tiny(type(part), given.get(key, {})).to_dict() for key, part in parts.items()}
    return kind(**{**sizes, **{key: size for key, size in given.items() if key not in parts}})


def _has(plain: Any, key: str) -> bool:
    # A size that differs from layer to layer raises an error of its own.
    try:
        return hasattr(plain, key)
    except Exception:
        return True


def _is_settable(plain: Any, key: str, *, lists: bool = False) -> bool:
    listed = isinstance(vars(plain).get(key), list | tuple)
    return (lists or not listed) and not isinstance(getattr(type(plain), key, None), property)


def _fill(model: nn.Module, row: Row) -> None:
    # Some models begin with gates or projections of zeros, which no gradient of the part behind them would pass.
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters() if row.fill else ():
        if (row.fill == "all" or parameter.dim() > 1) and not parameter.any():
            nn.init.normal_(parameter, std=0.1, generator=draw)
