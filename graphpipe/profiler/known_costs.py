"""Costs of operators that were measured before on this machine, in the user's cache folder.

The key of an operator has its code, the values and classes that it uses, the shapes of what it reads, and everything
else that its time depends on: the machine, versions, threads, batch sizes and the loss. In doubt it is measured.
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import fx

from graphpipe.costs.op_cost import OpCost
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import keep_newest, make_private
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.model.capture_cache.user_modules import package_version, user_modules
from graphpipe.model.capture_cache.value_form import InDoubt, ValueForms
from graphpipe.profiler.operators.op_runs import OpRun
from graphpipe.profiler.saved.saved_values import KeptValues
from graphpipe.profiler.step_overheads import StepOverheads
from graphpipe.user_frames import warn_user

MOST_ENTRIES = 8192
"""Of two files for each operator. Older ones are removed."""
_KIND, _KEPT, _STEP = "measured-cost", "measured-kept", "measured-step"
Found = TypeVar("Found", OpCost, KeptValues)


class KnownCosts:
    """The rows of operators that were measured before.

    Args:
        folder: of the cache. None: nothing is known, and nothing is kept.
        circumstances: values that the costs of all operators depend on.
        loss_fn: the loss that runs with the operator that ends the model.
    """

    def __init__(self, folder: Path | None, circumstances: Sequence[object], loss_fn: object = None) -> None:
        self._folder = folder / "costs" if folder else None
        self._circumstances = [*circumstances, platform.python_version(), str(torch.__version__), _machine()]
        self._loss_fn = loss_fn
        self._users = user_modules() if folder else {}
        self._entries: dict[str, Path | None] = {}
        self._rows: dict[str, OpCost | None] = {}
        self._kept: dict[str, KeptValues] = {}

    def row(self, run: OpRun) -> OpCost | None:
        """Return the row of an operator; None if it was not measured before, or if that is in doubt."""
        if run.op not in self._rows:
            entry = self._entries[run.op] = self._entry(run)
            self._rows[run.op] = _read(entry, _KIND, OpCost, run.op) if entry else None
        return self._rows[run.op]

    def kept(self, run: OpRun) -> KeptValues | None:
        """Return what an operator keeps; None if it was not measured before, or if that is in doubt."""
        self.row(run)
        entry = self._entries[run.op]
        return _read(_beside(entry), _KEPT, KeptValues, run.op) if entry else None

    def note_kept(self, kept: KeptValues) -> None:
        """Let `keep` write what an operator keeps."""
        self._kept[kept.op] = kept

    def keep(self, rows: Iterable[OpCost]) -> None:
        """Write the rows that were not known."""
        new = [(row, entry) for row in rows if not self._rows.get(row.op) and (entry := self._entries.get(row.op))]
        if not new or self._folder is None:
            return
        with suppress(OSError, InvalidInput):  # a folder that cannot be written only costs time
            make_private(self._folder)
            for row, entry in new:
                write_document(entry, _KIND, row)
                if row.op in self._kept:
                    write_document(_beside(entry), _KEPT, self._kept[row.op])
            keep_newest(self._folder, MOST_ENTRIES)

    def step(self, stepper: torch.optim.Optimizer | None) -> StepOverheads | None:
        """Return what a step costs with an optimizer; None if it was not measured before, or if that is in doubt."""
        entry = self._step_entry(stepper)
        if entry is None or not entry.exists():
            return None
        with suppress(InvalidInput):
            return read_document(entry, _STEP, lambda body: from_body(StepOverheads, body, str(entry)))
        return None

    def keep_step(self, stepper: torch.optim.Optimizer | None, step: StepOverheads) -> None:
        """Write what a step costs with an optimizer."""
        if entry := self._step_entry(stepper):
            with suppress(OSError):
                make_private(entry.parent)
                write_document(entry, _STEP, step)
                keep_newest(entry.parent, MOST_ENTRIES)

    def _step_entry(self, stepper: torch.optim.Optimizer | None) -> Path | None:
        kind = type(stepper)
        if self._folder is None or not (stepper is None or kind.__module__.startswith("torch.optim.")):
            return None
        groups = stepper.param_groups if stepper else []
        options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        shapes = [[str(each.dtype), *each.shape] for group in groups for each in group["params"]]
        try:
            form = ValueForms(self._users).form([options, self._circumstances])
        except (InDoubt, RecursionError):
            return None
        text = json.dumps([kind.__qualname__, shapes, form])
        return self._folder.with_name("steps") / f"{hashlib.sha256(text.encode()).hexdigest()}.json"

    def _entry(self, run: OpRun) -> Path | None:
        if self._folder is None or not isinstance(run.module, fx.GraphModule):
            return None
        forms = ValueForms(self._users)
        loss_fn = self._loss_fn if run.ends else None
        try:
            parts = [
                forms.form(part) for part in (run.signature, *run.module.children(), loss_fn, *self._circumstances)
            ]
        except (InDoubt, RecursionError):
            return None
        versions = {name: package_version(name) for name in sorted(forms.modules) if name not in self._users}
        text = json.dumps([run.module.code, parts, versions])
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _read(entry: Path, kind: str, noun: type[Found], op: str) -> Found | None:
    if not entry.exists():
        return None
    try:
        found = read_document(entry, kind, lambda body: from_body(noun, body, str(entry)))
    except InvalidInput as error:
        reason = " ".join(str(error).split())
        warn_user(f"a cost in the cache cannot be used, so '{op}' is measured again: {reason}")
        return None
    return found if found.op == op else None


def _beside(entry: Path) -> Path:
    return entry.with_suffix(".kept.json")


@cache
def _machine() -> list[str]:
    # Also the source of what measures, because a change of it may measure something else.
    source = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
    return [platform.node(), platform.machine(), _processor(), hashlib.sha256(source).hexdigest()]


def _processor() -> str:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in lines if line.startswith("model name")), "")
    return platform.processor()
