"""Verifies which weights the tasks of a segment read. Derives everything again, without code from `weight_versions`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.schedule import Schedule, StageTask

Reads = Mapping[StageTask, tuple[int, int]]
"""The version that each task reads, and by how many updates it is predicted ahead."""


def verify_versions(plan: Plan, schedule: Schedule, reads: Reads) -> None:
    """Check which weights every task of a segment reads, for a schedule that `schedule.verify` accepts.

    1. No task reads a version that its stage has not made yet, or a prediction that the policy does not allow.
    2. Every forward and backward reads the version that the policy says.
    3. A device never holds more versions and predictions of a stage's weights than `Stage.versions`.

    Args:
        plan: a sound plan.
        schedule: of a segment.
        reads: by task, as from `weight_reads`.

    Raises:
        InvalidInput: a stage would hold more versions than planned.
        AssertionError: a task reads other weights. This is a bug of GraphPipe.
    """
    histories = [_history(plan, schedule, stage) for stage in range(len(plan.stages))]
    for history in histories:
        for task, made in history.steps:
            version, ahead = reads[task]
            assert 0 <= version <= made, f"{task} reads version {version}, but its stage has made {made}"
            assert ahead >= 0 or plan.weights == "moving-average", f"{task} predicts {ahead} updates ahead"
            assert ahead <= 0 or plan.weights == "predict", f"{task} reads predicted weights"
        _check_policy(plan, history, reads)
        _check_held(plan, history, reads)
    if plan.weights == "vertical-sync":
        _check_one_version(plan, histories, reads)


@dataclass(frozen=True, slots=True)
class _History:
    stage: int
    micro_batches: int
    """Micro-batches of a mini-batch."""
    steps: Sequence[tuple[StageTask, int]]
    """The tasks except updates in order, each with the number of updates before it."""
    made_before: Mapping[tuple[bool, int], int]
    """Number of updates before a forward (True) or before the (input half of the) backward of a micro-batch."""


def _history(plan: Plan, schedule: Schedule, stage: int) -> _History:
    made, steps, before = 0, list[tuple[StageTask, int]](), dict[tuple[bool, int], int]()
    for task in schedule.devices[plan.stages[stage].devices[-1]]:
        if task.stage != stage:
            continue
        if task.kind == "U":
            made += 1
            continue
        steps.append((task, made))
        if task.kind != "W":
            before[task.kind == "F", task.micro_batch] = made
    return _History(stage, plan.batch_size // plan.stages[stage].micro_batch, steps, before)


def _check_policy(plan: Plan, history: _History, reads: Reads) -> None:
    for task, made in history.steps:
        version, ahead = reads[task]
        mini_batch = task.micro_batch // history.micro_batches
        at_forward = history.made_before[True, task.micro_batch]
        right = True
        if plan.weights == "flush":
            right = version == mini_batch == made
        elif plan.weights == "double-buffer":
            right = version == (mini_batch - 1 if mini_batch else 0)
        elif plan.weights == "stash":
            right = version == at_forward
        elif plan.weights == "moving-average":
            newest = history.made_before[task.kind == "F", task.micro_batch]
            right = (version, version + ahead) == (newest, at_forward)
        elif plan.weights == "predict":
            right = _predicts_rightly(plan, history, task, version, ahead)
        assert right, f"{task} reads version {version} (+{ahead}), which '{plan.weights}' does not allow"


def _predicts_rightly(plan: Plan, history: _History, task: StageTask, version: int, ahead: int) -> bool:
    mini_batch = task.micro_batch // history.micro_batches
    made = history.made_before[task.kind == "F", task.micro_batch]
    if plan.predictor == "xpipe" and task.kind == "F":
        made = history.made_before[True, mini_batch * history.micro_batches]
    if version != made:
        return False
    aim = mini_batch
    if plan.predictor == "spectrain":
        # On a longest path, half as many micro-batches follow as there are stages before this one.
        last_mini_batch = max(it.micro_batch for it, _ in history.steps) // history.micro_batches
        before = _longest_path(plan) - _longest_path(plan, history.stage)
        aim = min(last_mini_batch, (task.micro_batch + before // 2) // history.micro_batches)
    return ahead == max(0, aim - version)


def _longest_path(plan: Plan, start: int | None = None) -> int:
    """Return the most edges on a path from a stage, or on any path."""
    reach = [*range(len(plan.stages))] if start is None else [start]
    length = -1
    while reach:
        length += 1
        reach = [*{edge.target for edge in plan.edges if edge.source in reach}]
    return length


def _check_held(plan: Plan, history: _History, reads: Reads) -> None:
    stage, planned = plan.stages[history.stage], plan.stages[history.stage].versions
    kept = Counter[int]()
    for (version, ahead), places in _places(history, reads).items():
        if not ahead:  # An old version, from the update after it to its last reader.
            begin = next((at for at, (_, made) in enumerate(history.steps) if made > version), places[-1] + 1)
            kept.update(range(begin, places[-1] + 1))
        elif plan.predictor == "xpipe":  # A predicted copy, from its first reader to its last.
            kept.update(range(places[0], places[-1] + 1))
        else:  # Each reader makes its own.
            kept.update(places)
    if plan.weights == "moving-average" and any(reads[task][1] for task, _ in history.steps):
        kept.update(range(len(history.steps)))  # the average
    for place, (task, _) in enumerate(history.steps):
        held = 1 + kept[place]
        if held > planned:
            raise InvalidInput(
                f"with {task}, each device holds {held} versions of the weights, but versions is {planned}",
                where=f"stage '{stage.name}'",
                remedy=f"Set versions to {held} or more, or keep fewer samples in flight.",
            )


def _places(history: _History, reads: Reads) -> dict[tuple[int, int], list[int]]:
    # The positions of the tasks that read each version, or each prediction.
    places: dict[tuple[int, int], list[int]] = {}
    for place, (task, _) in enumerate(history.steps):
        places.setdefault(reads[task], []).append(place)
    return places


def _check_one_version(plan: Plan, histories: Sequence[_History], reads: Reads) -> None:
    """Under `vertical-sync`, a mini-batch reads one version at all stages: the newest that all have when it arrives."""
    count = 1 + max(task.micro_batch for task, _ in histories[0].steps) // histories[0].micro_batches
    for mini_batch in range(count):
        versions = {
            reads[task][0]
            for it in histories
            for task, _ in it.steps
            if task.micro_batch // it.micro_batches == mini_batch
        }
        least = sorted(it.made_before[True, mini_batch * it.micro_batches] for it in histories)[0]
        assert versions == {least}, f"mini-batch {mini_batch} reads the versions {sorted(versions)}, not {least}"
