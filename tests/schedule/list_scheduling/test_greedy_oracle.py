"""The greedy rule against a second program, which keeps every message and looks through all of them each time."""

import random
from dataclasses import dataclass, field, replace
from math import inf

import pytest
from builders import Part, chain, make_plan, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.cluster import Link
from graphpipe.costs import Curve
from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.greedy import Rule, greedy
from graphpipe.schedule.list_scheduling.partial_schedule import PartialSchedule
from graphpipe.schedule.list_scheduling.plan_work import PlanWork, work_of_plan
from graphpipe.schedule.list_scheduling.stage_work import StageWork


@dataclass
class Slow:
    """What has happened so far: for every task its stage, kind, start and end; for every message its arrival."""

    works: PlanWork
    tasks: list[tuple[int, str, float, float]] = field(default_factory=list[tuple[int, str, float, float]])
    messages: list[tuple[int, bool, int, float]] = field(default_factory=list[tuple[int, bool, int, float]])
    """Receiver, whether it is an output, the receiver's micro-batch, and when it arrives."""
    channels: dict[int, float] = field(default_factory=dict[int, float])
    """When each channel is free."""

    def count(self, stage: int, kinds: str) -> int:
        return sum(here == stage and kind in kinds for here, kind, *_ in self.tasks)

    def work(self, stage: int) -> StageWork:
        return self.works.stages[stage]

    def free(self, stage: int) -> float:
        own = {*self.work(stage).places}
        return max([0.0, *(end for here, _, _, end in self.tasks if own & {*self.work(here).places})])

    def arrived(self, stage: int, *, output: bool) -> float:
        """Return when the next forward or backward has all its messages."""
        index = self.count(stage, "F" if output else "BI")
        wanted = self.work(stage).inputs if output else self.work(stage).returns
        if index == len(wanted) or (not output and index == self.count(stage, "F")):
            return inf
        came = [at for to, out, task, at in self.messages if (to, out, task) == (stage, output, index)]
        return max([0.0, *came]) if len(came) == wanted[index] else inf

    def idle(self, stage: int) -> float:
        """Return how long the stage has had no task while its devices had none either, since its first one."""
        idle, begun = 0.0, False
        for number, (here, _, start, _) in enumerate(self.tasks):
            if here != stage:
                continue
            before = Slow(self.works, self.tasks[:number])
            idle += start - before.free(stage) if begun else 0.0
            begun = True
        return idle

    def last(self, stage: int) -> str:
        kinds = [kind for here, kind, *_ in self.tasks if here == stage and kind != "W"]
        return "F" if not kinds or kinds[-1] == "F" else "B"

    def add(self, stage: int, kind: str, start: float) -> list[int]:
        """Add a task and its messages, and return who receives them."""
        work, index = self.work(stage), self.count(stage, "F" if kind == "F" else "BI")
        end = start + work.seconds[kind]  # pyright: ignore[reportArgumentType]
        self.tasks.append((stage, kind, start, end))
        routes = {"F": work.outputs, "W": ()}.get(kind, work.gradients)
        for route in routes:
            for micro_batch, seconds in route.portions[index]:
                sent = max(end, self.channels.get(route.channel, 0.0))
                self.messages.append((route.to, kind == "F", micro_batch, sent + seconds))
                self.channels[route.channel] = sent + route.occupied * seconds
        return [route.to for route in routes]

    def seconds(self) -> float:
        """Return when every device has summed the gradients of its stages, one after the other, and updated."""
        ends = [
            max([0.0, *(end for here, *_, end in self.tasks if here == at)]) for at in range(len(self.works.stages))
        ]
        devices = range(len(self.works.devices))
        summed = dict.fromkeys(devices, 0.0)
        for at in sorted(range(len(ends)), key=lambda at: ends[at]):
            own = self.work(at).places
            over = max([ends[at], *(summed[place] for place in own)]) + self.work(at).sum_seconds
            summed |= dict.fromkeys(own, over)
        found = 0.0
        for device in devices:
            hosted = [at for at in range(len(ends)) if device in self.work(at).places]
            update = sum(self.work(at).optimizer_seconds for at in hosted)
            found = max(found, max([summed[device], *(ends[at] for at in hosted)]) + update)
        return found

    def own_seconds(self) -> float:
        """Return the longest time of a stage from its first task to its update."""
        return max(
            self.free(at)
            - min([inf, *(start for here, _, start, _ in self.tasks if here == at)])
            + work.sum_seconds
            + work.optimizer_seconds
            for at, work in enumerate(self.works.stages)
        )


def choice(slow: Slow, stage: int, now: float, rule: Rule) -> tuple[str, float]:
    """Return the next task, or nothing and when to ask again."""
    work = slow.work(stage)
    forward, backward = slow.arrived(stage, output=True), slow.arrived(stage, output=False)
    forwards, backwards, weights = (slow.count(stage, kinds) for kinds in ("F", "BI", "BW"))
    room = forwards - backwards + work.kept * (backwards - weights) + 1 <= rule.caps[stage] + 1e-9
    here, waiting = forward <= now, backwards - weights
    if rule.alternate and slow.last(stage) == "B" and here:
        if room:
            return "F", now
        if waiting:
            return "W", now
    if backward <= now:
        return ("I" if work.seconds["W"] > 0 else "B"), now
    if room and here and backward - now >= rule.forward_wait_share * work.seconds["F"]:
        return "F", now
    soon = min(backward, forward) if room else backward
    if waiting:
        patient = soon - now < rule.weight_wait_share * work.seconds["W"] and (room or not here)
        most = max(slow.idle(other) for other in range(len(slow.works.stages)))
        if not patient or (rule.balance and slow.idle(stage) + soon - now >= most):
            return "W", now
    return "", backward if room and here else soon


def slow_greedy(works: PlanWork, rule: Rule, limit: float) -> Slow:
    slow, wakes = Slow(works), dict.fromkeys(range(len(works.stages)), 0.0)

    def ask(stage: int, at: float) -> None:
        if at < wakes.get(stage, inf):
            wakes[stage] = at

    while wakes:
        now = min(wakes.values())
        stage = max(stage for stage, at in wakes.items() if at == now)
        del wakes[stage]
        if slow.free(stage) > now:
            ask(stage, slow.free(stage))
            continue
        kind, again = choice(slow, stage, now, rule)
        if not kind:
            ask(stage, again)
            continue
        for to in slow.add(stage, kind, now):
            ask(to, max(now, slow.arrived(to, output=kind == "F"), slow.free(to)))
        work, end = works.stages[stage], slow.tasks[-1][3]
        each = ("F", "I", "W") if work.split else ("F", "B")
        left = work.count * sum(work.seconds[kind] for kind in each)
        left -= sum(end - start for here, _, start, end in slow.tasks if here == stage)
        if end + left + work.sum_seconds + work.optimizer_seconds > limit + 1e-9:
            break
        ask(stage, end)
    return slow


def check_equal(found: PartialSchedule, slow: Slow) -> None:
    assert found.order == [stage for stage, *_ in slow.tasks]
    for at, stage in enumerate(found.progress):
        own = [(kind, start, end) for here, kind, start, end in slow.tasks if here == at]
        assert stage.kinds == [kind for kind, *_ in own]
        assert (stage.begun, stage.ended) == ((own[0][1], own[-1][2]) if own else (inf, 0.0))
        assert stage.idle == slow.idle(at)
    finished = [slow.count(at, "BW") == work.count for at, work in enumerate(slow.works.stages)]
    assert found.complete == all(finished)
    if found.complete:
        assert (found.seconds, found.own_seconds) == (slow.seconds(), slow.own_seconds())


EXACT = (0.5, 1.0, 3.0, 10.0)
"""Sums of these are exact, so both programs find the same ties."""


def drawn_plan(rng: random.Random) -> Plan:
    """Return a chain or two branches that join, all of whose stages but the sources have split backwards."""
    count = rng.randint(2, 3)
    edges = (
        chain(count, 1.0) if rng.random() < 0.7 else [(0, count - 1, 1.0), *((1, at, 1.0) for at in range(2, count))]
    )
    parts = [
        Part(
            micro_batch=rng.choice([1, 1, 2]),
            forward=rng.choice(EXACT),
            backward=rng.choice(EXACT),
            parameter_bytes=rng.choice([0.0, 4.0]),
            in_flight=2 * rng.randint(1, 4),
        )
        for _ in range(count)
    ]
    latency, bandwidth = rng.choice([0.0, 0.5, 4.0]), rng.choice([1.0, 4.0])
    link = Link(latency_seconds=latency, bandwidth_bytes_per_second=bandwidth, shared=rng.random() < 0.5)
    plan = make_plan(
        parts, edges, batch_size=8, schedule="zb-auto", link=link, optimizer_seconds_per_parameter_byte=0.5
    )
    kept = rng.choice([0.5, 1.0])
    rows = tuple(
        replace(row, weight_gradient=Curve(lines=((0.0, rng.choice([0.5, 2.0, 8.0])),))) for row in plan.costs.rows
    )
    return replace(plan, costs=replace(plan.costs, rows=rows, kept_for_weight_gradient=kept))


@pytest.mark.parametrize("seed", range(8))
def test_the_greedy_rule_is_that_of_a_slow_program(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(15):
        works = work_of_plan(drawn_plan(rng))
        rule = Rule(
            caps=tuple(rng.choice([work.room, rng.randint(1, work.room)]) for work in works.stages),
            alternate=rng.random() < 0.5,
            forward_wait_share=rng.choice([0.0, 0.5, 2.0]),
            weight_wait_share=rng.choice([0.0, 0.25, 1.0]),
            balance=rng.random() < 0.5,
        )
        limit = rng.choice([inf, inf, inf, 60.0])
        check_equal(greedy(works, rule, limit), slow_greedy(works, rule, limit))


@settings(max_examples=20, deadline=None)
@given(data=st.data(), plan=plans(schedules=("zb-auto",), batch_size=8, costs=EXACT))
def test_so_it_is_where_stages_share_devices_and_have_replicas(data: st.DataObject, plan: Plan) -> None:
    works = work_of_plan(plan)
    rule = Rule(caps=tuple(data.draw(st.integers(1, work.room)) for work in works.stages))
    check_equal(greedy(works, rule), slow_greedy(works, rule, inf))


def test_what_a_rule_is_if_nothing_is_said() -> None:
    said = Rule(caps=(1,), alternate=True, forward_wait_share=0.0, weight_wait_share=0.25, balance=False)
    assert Rule(caps=(1,)) == said
