"""What `graphpipe train --dry-run` prints below the plan."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphpipe.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from graphpipe.training.dry_run import DryRun

ONLY_WEIGHTS = "save only the last weights: with train.checkpoint_every, a run that breaks off could be resumed"


def dry_run_lines(found: "DryRun") -> Iterator[str]:
    """Yield the sentences about a training that was not started."""
    predicted = found.plan.prediction.step_seconds if found.plan.prediction else None
    lasts = "" if predicted is None else f", about {format_seconds(predicted * found.steps)} by the prediction"
    ranks = len(found.plan.used_devices)
    yield f"would train {found.steps:,} steps of {found.plan.batch_size:,} samples on {ranks} ranks{lasts}"
    saved = f"save {found.checkpoints} checkpoints" if found.checkpoints > 1 else "save a checkpoint at the end"
    yield f"would evaluate {_times(found.evaluations)}, and {saved if found.checkpoints else ONLY_WEIGHTS}"
    for count, options in found.groups:
        yield f"optimizer: {count} of the model's parameters with {options}"
    yield f"trains {found.parameters:,} numbers"
    if found.checkpoint_bytes is not None and found.checkpoints:
        yield f"a checkpoint takes {format_bytes(found.checkpoint_bytes)}"
    if found.disk_bytes is None:
        yield "disk: not known, because this optimizer shows its state only after a step"
    else:
        yield f"disk: at most {format_bytes(found.disk_bytes)}, {format_bytes(found.disk_free_bytes)} is free"
    if found.memory_bytes:
        yield f"memory: {format_bytes(found.memory_bytes)} predicted, {format_bytes(found.memory_free_bytes)} available"
    else:
        yield "memory: the plan fits its devices; whether this machine has them was not checked"
    for problem in found.problems:
        yield f"problem: {problem}"
    if not found.problems:
        yield "nothing stands in the way"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
