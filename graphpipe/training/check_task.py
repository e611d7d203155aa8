"""The check before the first step of a training: does its plan train the task as plain PyTorch does?"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from graphpipe.equivalence.check import NotChecked, TooLarge, check, check_memory
from graphpipe.equivalence.check_stages import StageChecked, check_stages
from graphpipe.equivalence.equivalence import Equivalence
from graphpipe.equivalence.known_checks import entry_of, note_equal
from graphpipe.equivalence.small_plan import small_plan
from graphpipe.equivalence.steps.doubtful_rows import MOST
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import cache_folder
from graphpipe.model.capture.capture import Captured
from graphpipe.plans import Plan
from graphpipe.run.device.random_state import RandomState
from graphpipe.run.initial_weights.filled_copy import filled_copy, lacks_data
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.first_samples import first_samples
from graphpipe.training.task.initial_weights import initial_weights
from graphpipe.training.task.task import Task
from graphpipe.units import format_seconds
from graphpipe.waiting import waiting

ANYWAY = "`--no-check` trains anyway."


def check_task(config: TrainConfig, task: Task, plan: Plan, captured: Captured, tell: Callable[[str], None]) -> None:
    """Check a training before its first step, unless its settings say otherwise.

    Args:
        config: of the training.
        task: its task.
        plan: to be run.
        captured: the model as it was captured for the plan.
        tell: called with the result, or with the reason why nothing was checked.

    Raises:
        InvalidInput: the plan trains otherwise than plain PyTorch, or the pipeline refuses the model.
    """
    if not config.train.check:
        return
    entry = entry_of(plan, task.model, task.loss_fn, cache_folder() if config.plan.cache else None)
    if entry is not None and entry.exists():
        with suppress(OSError):
            entry.touch()
        tell("this plan trains the model as plain PyTorch does: found by an earlier check")
        return
    random = RandomState.now()
    size, seed, module = config.train.batch_size, config.train.seed, task.model
    source = initial_weights(config, task)
    inputs: Any = None
    targets: Any = None
    try:
        inputs, targets = first_samples(task, max(small_plan(plan).batch_size, min(size, MOST)), size, seed)
        if lacks_data(module):
            check_memory(module)
            module = filled_copy(module, source, seed)
        with waiting("checking the plan against plain PyTorch"):
            found = check(plan, module, task.loss_fn, inputs, targets, captured=captured)
    except TooLarge as error:
        tell(f"the whole model was not checked against plain PyTorch: {error.what}")
        with waiting("checking each stage"):
            stages = check_stages(
                plan, module, task.loss_fn, inputs, targets, captured=captured, source=source, seed=seed
            )
        _judge_stages(stages, tell)
        return
    except NotChecked as error:
        tell(f"the plan was not checked against plain PyTorch: {error.what}")
        return
    finally:
        random.restore()
    _judge(found, tell)
    note_equal(entry, found)


def _judge_stages(found: Sequence[StageChecked], tell: Callable[[str], None]) -> None:
    for each in found:
        tell(str(each))
    if wrong := next((each for each in found if each.differences), None):
        raise InvalidInput(
            str(wrong),
            where="check",
            remedy="Name what needs all samples (whole_batch), let the loss return its sum and its weight, or plan "
            f"with the whole mini-batch as the micro-batch. {ANYWAY}",
        )


def _judge(found: Equivalence, tell: Callable[[str], None]) -> None:
    if found.equal:
        seconds = format_seconds(found.check_seconds)
        tell(f"this plan trains {found.samples} samples as plain PyTorch does (checked in {seconds})")
        for note in found.notes:
            tell(f"not compared: {note}")
    elif not found.repeats:
        tell(f"the plan was not checked against plain PyTorch: {found.remedy}")
    else:
        what = "; ".join(each.sentence for each in found.differences[:2])
        more = f"; and {len(found.differences) - 2} more" if len(found.differences) > 2 else ""
        raise InvalidInput(
            f"the plan trains otherwise than plain PyTorch ({found.where}): {what}{more}",
            where="check",
            remedy=f"{found.remedy} {ANYWAY}",
        )
