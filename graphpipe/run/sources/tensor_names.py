"""Which tensor of a file is which tensor of a model: their names may differ by a prefix."""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

_WRAPPERS = ("module.", "_orig_mod.", "model.")
"""What other tools put before all names: DistributedDataParallel, torch.compile, and training scripts."""


def file_names(model: nn.Module, names: Collection[str], known: Collection[str]) -> tuple[dict[str, str], str]:
    """Return, by name in the model, the name in the file, for as many as there are; and what files put before names.

    Args:
        model: the user's. A model of Hugging Face says under which name its base model is.
        names: of tensors of the model.
        known: names in the file.
    """
    base = str(getattr(model, "base_model_prefix", "") or "")
    prefixes = [*_WRAPPERS, *([f"{base}."] if base else [])]
    candidates: list[tuple[dict[str, str], str]] = [({name: name for name in names}, "")]
    candidates += [({name: prefix + name for name in names}, prefix) for prefix in prefixes]
    candidates += [({name: name.removeprefix(prefix) for name in names}, "") for prefix in prefixes]
    found = [({name: other for name, other in each.items() if other in known}, prefix) for each, prefix in candidates]
    return max(found, key=lambda pair: len(pair[0]))  # the first of several


def ignored_by(model: nn.Module, name: str, patterns: Sequence[str]) -> bool:
    """Whether a tensor of a file may be left out: the caller or a model of Hugging Face says so."""
    given: Any = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return matches(name, patterns) or any(re.search(pattern, name) for pattern in given)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is one of some patterns such as `head.*`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def tied_to(names: Mapping[str, str], tensor: Sequence[str]) -> str | None:
    """Return the name in the file of a tensor with several names, of which the file may have any."""
    return next((names[name] for name in tensor if name in names), None)
