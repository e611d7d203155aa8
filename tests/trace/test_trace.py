"""Traces that people changed by hand: the first wrong field is named, and what a simulation wrote is accepted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import Part, make_plan, plans
from hypothesis import given, settings

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace, median_trace

PLAN = make_plan([Part(micro_batch=2), Part(micro_batch=2)], [(0, 1, 4.0)], batch_size=4)


@settings(max_examples=30)
@given(plan=plans())
def test_what_a_simulation_writes_is_accepted(plan: Plan):
    simulate(plan).check("trace.json")


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("batch_size",), 0, "field batch_size: is 0, must be at least 1"),
        (("step_seconds",), -1.0, "field step_seconds: is -1.0, must be finite and not negative"),
        (("slowdown",), 0.0, "field slowdown: is 0.0, must be finite and more than 0"),
        (("used_devices", 1), 0, "field used_devices.1: is 0, must be another device"),
        (("used_devices", 1), 9, "field used_devices.1: is 9, must be another device than those before it, from 0 to"),
        (("spans", 3, "device"), 7, "field spans.3.device: is 7, which is not among used_devices"),
        # A report made a colour for every stage up to this one, which did not end.
        (("spans", 3, "stage"), 2**63, "field spans.3.stage: is 9223372036854775808, must be from 0 to "),
        (("spans", 3, "stage"), -1, "field spans.3.stage: is -1, must be from 0"),
        (("spans", 3, "micro_batch"), -2, "field spans.3.micro_batch: is -2, must be at least -1"),
        (("spans", 3, "peer"), 99, "field spans.3.peer: is 99, must be from 0 to"),
        (("spans", 3, "start_seconds"), -0.5, "field spans.3.start_seconds: is -0.5, must be finite"),
        (("spans", 0, "start_seconds"), 1e9, "but the span starts later, at 1000000000.0"),
        (("spans", 3, "end_seconds"), 1e400, "holds a value that this program does not read"),
        (("spans", 3, "bytes"), -1.0, "field spans.3.bytes: is -1.0"),
        (("memory", 0, "device"), -1, "field memory.0.device: is -1, must be from 0 to"),
        (("memory", 0, "bytes"), -1.0, "field memory.0.bytes: is -1.0"),
    ],
)
def test_a_wrong_field_is_named(path: tuple[str | int, ...], value: object, problem: str, tmp_path: Path):
    file = tmp_path / "trace.json"
    simulate(PLAN).save(file)
    content: Any = json.loads(file.read_text())
    part = content
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidInput) as found:
        Trace.load(file)
    assert str(file) in str(found.value)
    assert problem in str(found.value)


def test_the_median_of_traces_is_the_slower_one_of_both_in_the_middle():
    by_seconds = [replace(simulate(PLAN), step_seconds=seconds) for seconds in (3.0, 1.0, 4.0, 2.0)]
    assert median_trace(by_seconds).step_seconds == 3.0
    assert median_trace(by_seconds[:3]).step_seconds == 3.0
    assert median_trace(by_seconds[:1]) is by_seconds[0]
