"""How much work the samples of a task are, for balanced mini-batches (`train.balance`)."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from graphpipe.balance.balanced_order import balanced_order
from graphpipe.balance.blocks import Blocks
from graphpipe.errors import InvalidInput, nearest
from graphpipe.model.inputs import read_layout
from graphpipe.plans import Plan
from graphpipe.run.step.balance import WORK_REMEDY, Balance, WorkFunction
from graphpipe.training.task.task import Task

BY_TASK = "task"
"""The word for the task's own `loads`, in place of an input's name."""
Arrange = Callable[[Sequence[int]], list[int]]
"""Puts the samples of a mini-batch, given by their indices, into another order."""


def check_work(task: Task, names: Sequence[str]) -> None:
    """Check that the work of a task's samples is known where a training is told to look for it.

    Raises:
        InvalidInput: the task has no loads, an input is unknown, or inputs are named although ranks read only their
            shares of them.
    """
    known = [*read_layout(task.model, task.example_inputs).names, BY_TASK]
    for name in names:
        if name == BY_TASK and task.loads is None:
            remedy = "Give Task(loads=...), or name an input."
            raise InvalidInput("names the loads of the task, which has none", where="train.balance", remedy=remedy)
        if name not in known:
            raise InvalidInput(f"'{name}' is no input of the model", where="train.balance", remedy=nearest(name, known))
        if name != BY_TASK and task.dataset is not None:
            remedy = "Give Task(loads=...), a function from the index of a sample to its load, and name 'task'."
            what = f"names the input '{name}', of which each rank reads only a part"
            raise InvalidInput(what, where="train.balance", remedy=remedy)


def balance_of(task: Task, names: Sequence[str]) -> Balance | None:
    """Return how the pipeline finds the work of samples; None if it need not: nothing is named, or readers do it."""
    if not names or task.dataset is not None:
        return None
    return tuple(cast("WorkFunction", task.loads) if name == BY_TASK else name for name in names)


def arrange_of(task: Task, names: Sequence[str], plan: Plan) -> Arrange | None:
    """Return the function that balances the samples of a data set, for the blocks of a plan; None if nothing does."""
    if not names or task.dataset is None:
        return None
    blocks = Blocks.of(plan)

    def arrange(samples: Sequence[int]) -> list[int]:
        order = balanced_order(_work(task.loads, samples), blocks)
        return [samples[at] for at in order]

    return arrange


def _work(loads: Any, samples: Sequence[int]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    found = [loads(sample) if callable(loads) else loads[sample] for sample in samples]
    try:
        table = np.array(found, dtype=np.float64).reshape(len(samples), -1)
    except (TypeError, ValueError):
        kinds = sorted({type(each).__name__ for each in cast("list[object]", found)})
        raise InvalidInput(f"gives {', '.join(kinds)}", where="Task.loads", remedy=WORK_REMEDY) from None
    if not np.isfinite(table).all() or (table < 0).any():
        at = int(np.argmin(table.min(axis=1)))
        raise InvalidInput(f"gives {found[at]} for sample {samples[at]}", where="Task.loads", remedy=WORK_REMEDY)
    return table
