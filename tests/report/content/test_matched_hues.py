"""The colours and the sentence of a comparison: what is the same in several plans, and why a bubble is larger."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from subjects import PLAN

from graphpipe.plans import Plan
from graphpipe.report.content.compared_plan import ComparedPlan, larger_bubble
from graphpipe.report.content.matched_hues import matched_hues
from graphpipe.report.content.subject import Subject
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Span, Trace


def plan_of(*stages: str) -> Plan:
    return cast("Plan", SimpleNamespace(stages=[SimpleNamespace(ops=tuple(ops)) for ops in stages]))


def test_stages_with_most_of_the_same_operators_have_one_hue_in_every_plan() -> None:
    assert matched_hues([plan_of("ab", "cd", "ef"), plan_of("ef", "ab", "cd")]) == [(0, 1, 2), (2, 0, 1)]
    # Two halves of a stage: the larger one keeps its hue. The other gets one that no stage has had.
    assert matched_hues([plan_of("abc", "de"), plan_of("c", "ab", "de")]) == [(0, 1), (2, 0, 1)]
    # A third plan is compared with all plans before it.
    assert matched_hues([plan_of("abcd"), plan_of("ab", "cd"), plan_of("cd", "ab")])[1:] == [(0, 1), (1, 0)]
    assert matched_hues([plan_of("ab"), plan_of("xy", "z")]) == [(0,), (1, 2)]


def compared(name: str, seconds: float, busy: float) -> ComparedPlan:
    trace: Trace = simulate(PLAN)
    span = trace.spans[0]
    spans = tuple(
        Span(device=device, kind="F", stage=span.stage, micro_batch=0, start_seconds=0.0, end_seconds=busy)
        for device in trace.used_devices
    )
    given: Any = replace(trace, step_seconds=seconds, spans=spans)
    subject = SimpleNamespace(plan=PLAN, predicted=given, measured=None)
    return ComparedPlan(name=name, subject=cast("Subject", subject))


def test_a_faster_plan_with_the_larger_bubble_is_explained() -> None:
    devices = len(PLAN.used_devices)
    fast, slow = compared("fast", 2.0, 1.0), compared("slow", 3.0, 2.4)
    said = larger_bubble([slow, fast])
    assert said.startswith("fast is faster although its bubble is larger, 50.0% against 20.0% of slow.")
    assert f"those of fast compute for {devices:.2f} s and wait for {devices:.2f} s" in said
    assert f"those of slow compute for {2.4 * devices:.2f} s and wait for {0.6 * devices:.2f} s" in said
    assert larger_bubble([compared("fast", 2.0, 1.9), slow]) == ""
