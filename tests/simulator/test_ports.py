"""Messages and sums of gradients share the ports of devices: against arithmetic by hand and another simulation."""

from dataclasses import dataclass, replace

import pytest
from builders import Part, chain, make_plan, plans, share
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.cluster import Device, Link, LinkLevel
from graphpipe.plans import Plan
from graphpipe.plans.estimates import period_seconds
from graphpipe.schedule import Compute, Reduce, ReduceTied, Send, StageTask, Transfer
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.simulator import step_seconds
from graphpipe.simulator.critical_path import applies, schedule_times
from graphpipe.simulator.lines.repeating_period import Period
from graphpipe.simulator.simulate import happen, happen_lowered, simulate
from graphpipe.simulator.steady_period import timed_tasks
from graphpipe.simulator.verify_ports import verify_ports

WAYS = ("send", "receive")
SHARED = Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0, shared=True)


def received(plan: Plan) -> dict[int, tuple[float, float]]:
    """Return when the one message to each device starts and ends."""
    spans = [span for span in simulate(plan).spans if span.kind == "receive"]
    return {span.device: (span.start_seconds, span.end_seconds) for span in spans if span.end_seconds < 20}


def fan(link: Link, first: float = 4.0) -> Plan:
    parts = [Part(), Part(backward=100.0), Part(backward=100.0)]
    return make_plan(parts, [(0, 1, first), (0, 2, 4.0)], batch_size=1, link=link)


@pytest.mark.parametrize(
    ("link", "first", "arrivals"),
    [
        (replace(SHARED, shared=False), 4.0, (5, 5)),
        (SHARED, 4.0, (9, 9)),
        (SHARED, 2.0, (5, 7)),  # at half speed until 2 bytes of both have gone, then alone
        (replace(SHARED, latency_seconds=3.0), 4.0, (12, 12)),  # latencies do not wait for each other
    ],
)
def test_messages_to_two_devices_share_the_port_of_the_sender(
    link: Link, first: float, arrivals: tuple[float, float]
) -> None:
    """Each pair of devices had a channel of its own, so plans with a wide fan-out looked faster than they are."""
    plan = fan(link, first)
    assert received(plan) == {1: (1, arrivals[0]), 2: (1, arrivals[1])}
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


def test_messages_from_two_devices_share_the_port_of_the_receiver() -> None:
    parts = [Part(forward=1.0), Part(forward=3.0), Part(backward=100.0)]
    plan = make_plan(parts, [(0, 2, 4.0), (1, 2, 4.0)], batch_size=1, link=SHARED)
    spans = [span for span in simulate(plan).spans if span.kind == "receive" and span.device == 2]
    # 2 bytes alone until 3 s, then 2 bytes at half speed until 7 s, then the other 2 bytes.
    assert {span.peer: span.end_seconds for span in spans} == {0: 7, 1: 9}
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


def test_the_two_directions_of_a_port_do_not_share() -> None:
    plan = make_plan([Part(), Part()], chain(2, 2.0), batch_size=8, link=SHARED)
    sent, arrived = ([span for span in simulate(plan).spans if (span.kind, span.device) == (kind, 0)] for kind in WAYS)
    assert all(span.end_seconds - span.start_seconds == 2 for span in (*sent, *arrived))
    crossings = [one for one in sent for other in arrived if one.start_seconds < other.end_seconds]
    assert any(one.end_seconds > other.start_seconds for one in crossings for other in arrived)


def test_a_sum_of_gradients_shares_ports_with_a_message() -> None:
    # Stage 1 ends its backward at 6 s. It then sends a gradient of 2 bytes from each replica, and sums 4 bytes of
    # gradients between its two replicas in 4 s: 2 s of both at half speed are 4 s, then 2 s of the sum are left.
    parts = [Part(micro_batch=2, parameter_bytes=4.0), Part(micro_batch=2, degree=2, parameter_bytes=4.0)]
    plan = make_plan(parts, chain(2, 2.0), batch_size=2, link=SHARED)
    sum_span, _ = [span for span in simulate(plan).spans if span.kind == "reduce"]
    alone = replace(plan, cluster=plan.cluster.with_every_link(lambda link: replace(link, shared=False)))
    alone_span, _ = [span for span in simulate(alone).spans if span.kind == "reduce"]
    seconds = alone_span.end_seconds - alone_span.start_seconds
    # The message of each replica leaves a port that the sum also uses, until 4 bytes have arrived at device 0.
    assert sum_span.end_seconds - sum_span.start_seconds == pytest.approx(seconds + 2.0)
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


def test_inference_counts_the_busiest_port() -> None:
    parts = [Part()] + [Part()] * 3
    edges = [(0, stage, 4.0) for stage in (1, 2, 3)]
    shared, apart = (make_plan(parts, edges, batch_size=8, link=replace(SHARED, shared=it)) for it in (True, False))
    assert period_seconds(apart) == 8 * 4.0
    assert period_seconds(shared) == 8 * 4.0 * 3


# Another simulation


@dataclass(eq=False)
class Job:
    """Something under way."""

    what: object
    wait: float
    left: float
    ports: frozenset[tuple[int, str, str]] = frozenset()


class Fluid:
    """A step, moved on from one change to the next with all speeds computed anew, from the actions of the devices."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.now = plan, 0.0
        lowered = lower(plan, build_schedule(plan))
        self.todo: dict[int, list[StageTask]] = {device: [] for device in plan.used_devices}
        self.mail: dict[tuple[int, StageTask], list[Transfer]] = {}
        self.awaited: dict[tuple[int, StageTask], set[Transfer]] = {}
        self.sums: dict[int, list[Reduce | ReduceTied]] = {device: [] for device in plan.used_devices}
        for device in plan.used_devices:
            for action in lowered.devices[device]:
                if isinstance(action, Compute):
                    self.todo[device].append(action.task)
                elif isinstance(action, Send):
                    it = action.transfer
                    self.mail.setdefault((device, it.source_task), []).append(it)
                    self.awaited.setdefault((it.target_device, it.target_task), set()).add(it)
                elif isinstance(action, Reduce | ReduceTied):
                    self.sums[device].append(action)
        self.left = {device: [*tasks] for device, tasks in self.todo.items()}
        self.free = dict.fromkeys(plan.used_devices, True)
        self.queues: dict[tuple[int, int], list[Transfer]] = {}
        self.jobs: list[Job] = []
        self.ends: dict[tuple[int, StageTask], float] = {}
        self.gathers = [n for n in range(len(plan.stages)) if plan.gather_seconds(n)]
        self.finished = dict.fromkeys(plan.used_devices, 0.0)

    def run(self) -> float:
        self.start()
        while self.jobs:
            counts: dict[tuple[int, str, str], int] = {}
            for job in self.jobs:
                for port in job.ports if not job.wait else ():
                    counts[port] = counts.get(port, 0) + 1
            speeds = [
                1.0 / max([counts[port] for port in job.ports], default=1) if not job.wait else 0.0 for job in self.jobs
            ]
            step = min(job.wait or job.left / speed for job, speed in zip(self.jobs, speeds, strict=True))
            self.now += step
            done: list[Job] = []
            for job, speed in zip(self.jobs, speeds, strict=True):
                if job.wait:
                    job.wait = job.wait - step if job.wait - step > 1e-9 else 0.0
                else:
                    job.left -= step * speed
                if not job.wait and job.left <= 1e-9:
                    done.append(job)
            self.jobs = [job for job in self.jobs if job not in done]
            for job in done:
                self.end(job)
            self.start()
        assert not any(self.left.values())
        return max(self.finished[device] + self.updates(device) for device in self.plan.used_devices)

    @staticmethod
    def speed(job: Job, counts: dict[tuple[int, str, str], int]) -> float:
        return 0.0 if job.wait else 1.0 / max([counts[port] for port in job.ports], default=1)

    def updates(self, device: int) -> float:
        hosted = [number for number, stage in enumerate(self.plan.stages) if device in stage.devices]
        return sum(map(self.plan.optimizer_seconds, hosted))

    def start(self) -> None:
        while self.gathers and all(self.free[device] for device in self.plan.stages[self.gathers[0]].devices):
            number = self.gathers.pop(0)
            self.free |= dict.fromkeys(self.plan.stages[number].devices, False)
            self.jobs.append(Job(number, 0.0, self.plan.gather_seconds(number)))
        waiting = {device for number in self.gathers for device in self.plan.stages[number].devices}
        for device, tasks in self.left.items():
            if self.free[device] and device not in waiting and tasks and not self.awaited.get((device, tasks[0])):
                self.free[device] = False
                seconds = self.plan.task_seconds(tasks[0].stage, device).of(tasks[0].kind, 0.0)
                self.jobs.append(Job((device, tasks[0]), 0.0, seconds))
        for action in dict.fromkeys(action for sums in self.sums.values() for action in sums[:1]):
            devices, stages, seconds = self.members(action)
            left = [task for device in devices for task in self.left[device] if task.stage in stages]
            under_way = any(job.what == action for job in self.jobs)
            if not under_way and not left and all(self.sums[device][0] == action for device in devices):
                self.jobs.append(Job(action, 0.0, seconds, self.ring(devices)))

    def members(self, action: Reduce | ReduceTied) -> tuple[tuple[int, ...], tuple[int, ...], float]:
        if isinstance(action, Reduce):
            return self.plan.stages[action.stage].devices, (action.stage,), self.plan.reduce_seconds(action.stage)
        tied = self.plan.tied_gradients[action.tied_gradients]
        return tied.devices, tied.stages, self.plan.tied_gradients_seconds(tied)

    def ring(self, devices: tuple[int, ...]) -> frozenset[tuple[int, str, str]]:
        cluster = self.plan.cluster
        pairs = list(zip(devices, (*devices[1:], devices[0]), strict=True))
        slowest = min(pairs, key=lambda pair: (cluster.link(*pair) or SHARED).bandwidth_bytes_per_second)
        link = cluster.link(*slowest)
        if link is None or not link.shared:
            return frozenset()
        return frozenset((device, self.level(*slowest), way) for device in devices for way in ("in", "out"))

    def level(self, one: int, other: int) -> str:
        nodes = [self.plan.cluster.devices[device].node for device in (one, other)]
        return "near" if nodes[0] == nodes[1] else "far"

    def end(self, job: Job) -> None:
        if isinstance(job.what, int):
            self.free |= dict.fromkeys(self.plan.stages[job.what].devices, True)
        elif isinstance(job.what, Transfer):
            ends = job.what.source_device, job.what.target_device
            self.awaited[job.what.target_device, job.what.target_task].remove(job.what)
            self.queues[ends].pop(0)
            self.go(ends)
        elif isinstance(job.what, Reduce | ReduceTied):
            for device in self.members(job.what)[0]:
                self.sums[device].pop(0)
                self.finished[device] = max(self.finished[device], self.now)
        else:
            assert isinstance(job.what, tuple)
            device, task = job.what
            self.ends[device, task] = self.finished[device] = self.now
            self.free[device] = True
            self.left[device].pop(0)
            for transfer in self.mail.get((device, task), []):
                queue = self.queues.setdefault((device, transfer.target_device), [])
                queue.append(transfer)
                if len(queue) == 1:
                    self.go((device, transfer.target_device))

    def go(self, ends: tuple[int, int]) -> None:
        if not (queue := self.queues[ends]):
            return
        link, count = self.plan.cluster.link(*ends), queue[0].bytes(self.plan)
        assert link is not None
        level = self.level(*ends)
        ports = [(ends[0], level, "out"), (ends[1], level, "in")] if link.shared and count else []
        wait = link.latency_seconds if count else 0.0
        self.jobs.append(Job(queue[0], wait, count / link.bandwidth_bytes_per_second, frozenset(ports)))


@st.composite
def with_ports(draw: st.DrawFn, some: st.SearchStrategy[Plan]) -> Plan:
    """A plan on nodes of one to four devices, whose links are shared between nodes or also inside them."""
    plan, size = draw(some), draw(st.sampled_from([1, 2, 4]))
    devices = tuple(replace(each, node=f"n{number // size}") for number, each in enumerate(plan.cluster.devices))
    near = replace(plan.cluster.intra_node, bandwidth_bytes_per_second=16.0, shared=draw(st.booleans()))
    far = replace(plan.cluster.inter_node, shared=draw(st.sampled_from([True, True, False])))
    cluster = replace(plan.cluster, devices=devices, intra_node=near, inter_node=far)
    return replace(plan, cluster=cluster)


@settings(max_examples=20, deadline=None)
@given(with_ports(plans(quick=True, offloads=False, schedules=["1f1b", "gpipe", "zb-h1"])))
def test_the_simulation_agrees_with_another_one(plan: Plan) -> None:
    other = Fluid(plan)
    assert other.run() == pytest.approx(simulate(plan).step_seconds, rel=1e-9)
    spans = [span for span in simulate(plan).spans if span.kind in "FBIW"]
    ends = {(span.device, StageTask(span.kind, span.stage, span.micro_batch)): span.end_seconds for span in spans}  # type: ignore[arg-type]
    assert other.ends == pytest.approx(ends, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(with_ports(plans(batch_size=16, quick=True, costs=[1.0, 3.0], micro_batches=[1, 2, 4])), st.data())
def test_the_quick_path_is_the_simulation(plan: Plan, data: st.DataObject) -> None:
    """Plans with few different costs have many devices that do the same at the same times."""
    stages = data.draw(st.sets(st.integers(0, len(plan.stages) - 1), min_size=min(2, len(plan.stages))))
    if len(stages) > 1 and data.draw(st.booleans()):
        plan = share(plan, sorted(stages), 3.0)
    assert applies(plan)
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(with_ports(plans(batch_size=16, quick=True, shared=True, schedules=["1f1b", "gpipe", "interleaved", "zb-auto"])))
def test_the_quick_path_is_the_simulation_where_stages_share_devices(plan: Plan) -> None:
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(with_ports(plans(quick=True, offloads=False, schedules=["1f1b", "kfkb"])))
def test_plans_without_a_flush_share_ports_too(plan: Plan) -> None:
    stages = tuple(replace(stage, state="whole", recompute="none") for stage in plan.stages)
    plan = with_policy(replace(plan, stages=stages), "stash")
    schedule = build_segment(plan, 4)
    quick = {(timed.device, timed.task): timed.end for timed in timed_tasks(plan, schedule)}
    happened = happen_lowered(plan, lower(plan, schedule))
    assert quick == pytest.approx({what: when.end for what, when in happened if isinstance(what, tuple)}, rel=1e-9)


def test_equal_devices_that_share_ports_are_computed_once() -> None:
    """Two equal branches of two replicas each send to one device: the times of all four follow from those of one."""
    branch = Part(micro_batch=2, degree=2, parameter_bytes=3.0)
    parts = [branch, branch, Part(micro_batch=2)]
    plan = make_plan(parts, [(0, 2, 3.0), (1, 2, 3.0)], batch_size=8, link=SHARED)
    period = Period(plan, build_schedule(plan))
    assert period.alike == [0, 0, 0, 0, 4]
    assert period.ports
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


def test_ports_with_one_user_are_not_shared() -> None:
    """Then the order of tasks decides all times, which is quicker to follow."""
    plan = make_plan([Part(), Part()], chain(2, 4.0), batch_size=8, link=SHARED)
    schedule = build_schedule(plan)
    assert not Period(plan, schedule).ports
    assert schedule_times(plan, schedule).step_seconds is None


def test_levels_have_ports_of_their_own() -> None:
    far = Link(latency_seconds=0.0, bandwidth_bytes_per_second=0.5, shared=True)
    plan = fan(SHARED)
    nodes = ("a", "a", "b")
    devices = tuple(Device(name=each.name, type="unit", node=nodes[at]) for at, each in enumerate(plan.cluster.devices))
    split = replace(plan, cluster=replace(plan.cluster, devices=devices, inter_node=far))
    assert received(split) == {1: (1, 5), 2: (1, 9)}
    rack = LinkLevel(name="rack", link=far, nodes=(("a", "b"),))
    assert received(replace(split, cluster=replace(split.cluster, levels=(rack,)))) == {1: (1, 5), 2: (1, 9)}


def test_work_that_took_more_or_less_than_its_share_is_found() -> None:
    plan = fan(SHARED)
    happened = happen(plan)
    verify_ports(plan, happened)
    for what, when in happened:
        if isinstance(what, Transfer) and what.target_device == 1:
            for end in (when.end - 0.1, when.end + 0.1):
                wrong = [(it, time._replace(end=end) if it == what else time) for it, time in happened]
                with pytest.raises(AssertionError, match="passed"):
                    verify_ports(plan, wrong)
