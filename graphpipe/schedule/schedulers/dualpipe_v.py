"""DualPipeV: forwards of one half of a pipeline beside backwards of the other, on devices that host both in a V.

DeepSeek-AI, DualPipe and DualPipeV (2025), after Qi et al., Pipeline Parallelism with Controllable Memory (2024). With
p devices, device d hosts stages d and 2 p - 1 - d. In the drawing, capital letters are tasks of a device's first stage,
small letters those of its second. A forward, and each half of a backward, takes one column.

    time ->
    device 0   F0 F1 F2 f0 i0 w0 f1 F3 b1 b1 f2 B0 B0 F4 b2 b2 f3 B1 B1 b3 b3 f4    B2 B2 b4 b4 B3 B3 B4 B4
    device 1      F0 f0 F1 f1 F2 b0 b0 f2 B0 B0 F3 b1 b1 f3 B1 B1 F4 b2 b2 f4 B2 B2 b3 b3 B3 B3 i4 I4 w4 W4

A device does n micro-batches in eight steps (r = p - 1 - d), where pairs of a forward and a backward are in brackets.

    1. 2 r times              F                  the first stages fill the pipeline
    2. d + 1 times            F f
    3. r times                i w f              gradients travel on at once
    4. n - 2 p + d + 1 times  [F b] [f B]        the steady state
    5. r times                b [f B]
    6. d + 1 times            b B                from the middle on, weight halves wait
    7. r times                w I                and fill the time until the next gradient is there
    8. the rest               w W

The two tasks of a pair are of different micro-batches and stages, so neither waits for the other. On a device with
streams each stage has its own, and kernels of both run at the same time where the device has room. How much that gains
was not measured, so simulations count one after the other. The order of the paper is for chains. It is one of the
stages' numbers, so that a stage never waits for a later one, and so it holds for graphs of stages too.
"""

from collections import deque
from dataclasses import dataclass, field

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.plan_work import hosted_stages, most_held
from graphpipe.schedule.list_scheduling.stage_work import work_of_stages
from graphpipe.schedule.schedule import Schedule, StageTask
from graphpipe.schedule.scheduler import Scheduler

NAME = "dualpipe-v"


def build(plan: Plan) -> Schedule:
    """Return the schedule of a pipeline whose devices host two stages each, in a V.

    Raises:
        InvalidInput: the devices host other stages, the stages have several micro-batch sizes, there are fewer than two
            micro-batches for each device, or the plan allows too few samples in flight.
    """
    schedule = _schedule(plan)
    for number, (needed, stage) in enumerate(zip(most_held(plan, schedule.devices), plan.stages, strict=True)):
        if needed > stage.in_flight:
            raise InvalidInput(
                f"stage '{stage.name}' keeps {stage.in_flight} samples in flight, needs {needed}",
                where=f"plan, stages[{number}], in_flight",
                remedy="Leave in_flight out, or use another schedule.",
            )
    return schedule


def in_flight(plan: Plan) -> tuple[int, ...]:
    """Return the samples in flight of every stage, and at least those of 1F1B."""
    try:
        needed = most_held(plan, _schedule(plan).devices)
    except InvalidInput:  # `build` says why.
        return tuple(stage.in_flight for stage in plan.stages)
    return tuple(max(stage.in_flight, most) for stage, most in zip(plan.stages, needed, strict=True))


def _schedule(plan: Plan) -> Schedule:
    pairs, hosted = _pairs(plan), hosted_stages(plan)
    sizes = {stage.micro_batch for stage in plan.stages}
    if len(sizes) > 1:
        raise _refused(f"stages have micro-batches of {sorted(sizes)} samples, must have one size")
    count = plan.micro_batches(0)
    if count < 2 * len(pairs):
        raise _refused(f"{count} micro-batches for {len(pairs)} devices of a pipeline, must be at least two for each")
    splits = [work.split for work in work_of_stages(plan)]
    orders: dict[tuple[int, ...], tuple[StageTask, ...]] = {
        stages: _order(at, stages, count, len(pairs), splits) for at, stages in enumerate(pairs)
    }
    tasks = [orders[hosted[device]] if device in hosted else () for device in range(len(plan.cluster.devices))]
    return Schedule(name=NAME, devices=tuple(tasks))


def _pairs(plan: Plan) -> list[tuple[int, int]]:
    """Return the stages of each team of devices, the first team first."""
    count = len(plan.stages)
    folded = count % 2 == 0 and all(
        stage.devices == other.devices for stage, other in zip(plan.stages, reversed(plan.stages), strict=True)
    )
    teams = [stage.devices for stage in plan.stages[: count // 2]]
    if not folded or len({device for team in teams for device in team}) != sum(map(len, teams)):
        raise _refused("the devices do not host two stages each in a V: the first and the last one, and so on")
    return [(at, count - 1 - at) for at in range(count // 2)]


def _refused(what: str) -> InvalidInput:
    remedy = "Use 'interleaved' or 'zb-auto', or place the stages in a V by hand."
    return InvalidInput(what, where=f"schedule '{NAME}'", remedy=remedy)


def _order(at: int, stages: tuple[int, int], count: int, teams: int, splits: list[bool]) -> tuple[StageTask, ...]:
    """Return the tasks of the devices of one team, in the steps of the module's docstring."""
    own, rest = _Order(stages, splits), teams - 1 - at
    for _ in range(2 * rest):  # Step 1.
        own.forward(0)
    for _ in range(at + 1):  # Step 2.
        own.forward(0)
        own.forward(1)
    for _ in range(rest):  # Step 3.
        own.backward(1, halved=True)
        own.weights()
        own.forward(1)
    for _ in range(count - 2 * teams + at + 1):  # Step 4.
        own.forward(0)
        own.backward(1)
        own.forward(1)
        own.backward(0)
    for _ in range(rest):  # Step 5.
        own.backward(1)
        own.forward(1)
        own.backward(0)
    # Step 6: halves from the middle on, beginning with the second stage if the number of steps is even.
    half, halved = (at + 1) // 2, False
    for turn in range(at + 1):
        halved = halved or (turn == half and at % 2 == 1)
        own.backward(1, halved=halved)
        halved = halved or (turn == half and at % 2 == 0)
        own.backward(0, halved=halved)
    for _ in range(rest):  # Step 7.
        own.weights()
        own.backward(0, halved=True)
    own.rest()  # Step 8.
    return tuple(own.tasks)


@dataclass(slots=True)
class _Order:
    """The tasks of a device so far."""

    stages: tuple[int, int]
    splits: list[bool]
    """By stage, whether its backward is split."""
    tasks: list[StageTask] = field(default_factory=list[StageTask])
    forwards: list[int] = field(default_factory=lambda: [0, 0])
    backwards: list[int] = field(default_factory=lambda: [0, 0])
    waiting: deque[StageTask] = field(default_factory=deque[StageTask])
    """Weight halves whose input halves are done."""

    def forward(self, which: int) -> None:
        self.tasks.append(StageTask("F", self.stages[which], self.forwards[which]))
        self.forwards[which] += 1

    def backward(self, which: int, *, halved: bool = False) -> None:
        stage, index = self.stages[which], self.backwards[which]
        self.backwards[which] += 1
        if halved and self.splits[stage]:  # Others have no weights, or no stage waits for their input gradient.
            self.tasks.append(StageTask("I", stage, index))
            self.waiting.append(StageTask("W", stage, index))
        else:
            self.tasks.append(StageTask("B", stage, index))

    def weights(self) -> None:
        if self.waiting:
            self.tasks.append(self.waiting.popleft())

    def rest(self) -> None:
        self.tasks += self.waiting
        self.waiting.clear()


SCHEDULER = Scheduler(name=NAME, build=build, in_flight=in_flight, splits_backward=True, in_a_v=True)
