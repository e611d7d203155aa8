"""Which checks have found no difference before, in the user's cache folder: the same source and plan train alike.

An entry is an empty file, whose name is a hash of all that the result can depend on: the model and the loss with their
source, the plan, and this package. The values of weights and samples are no part of it.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from graphpipe.equivalence.equivalence import Equivalence
from graphpipe.files.cache_folder import keep_newest, make_private
from graphpipe.graph import Origin
from graphpipe.model.capture_cache.model_key import model_key, own_source
from graphpipe.model.capture_cache.user_modules import user_modules
from graphpipe.model.capture_cache.value_form import InDoubt, ValueForms
from graphpipe.plans import Plan

_MOST = 256


def entry_of(plan: Plan, model: nn.Module, loss_fn: Any, folder: Path | None) -> Path | None:
    """Return where a check that found no difference is noted; None if there is no cache, or a value is in doubt."""
    if folder is None:
        return None
    try:
        key = model_key(model, plan.graph.inputs, plan.graph.origin or Origin(method="auto"))
        loss = repr(ValueForms(user_modules()).form(loss_fn))
    except (InDoubt, RecursionError):
        return None
    if key is None:
        return None
    found = hashlib.sha256("\n".join([key, loss, plan.fingerprint, own_source()]).encode())
    return folder / "checks" / found.hexdigest()


def note_equal(entry: Path | None, found: Equivalence) -> None:
    """Note that a check has found no difference. A folder that cannot be written only costs time."""
    if entry is not None and found.equal:
        with suppress(OSError):
            make_private(entry.parent)
            entry.touch(mode=0o600)
            keep_newest(entry.parent, _MOST)
