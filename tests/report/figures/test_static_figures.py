"""Static pictures and Mermaid flowcharts."""

import re
import struct
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from subjects import PLAN, PREDICTED, large_trace, whole_subject

from graphpipe.errors import InvalidInput
from graphpipe.report.content.subject import Subject
from graphpipe.report.figures.mermaid import mermaid
from graphpipe.report.figures.static_figures import write_still


def test_svg_contains_the_stages_and_the_micro_batches(tmp_path: Path) -> None:
    subject = Subject(title="", plan=PLAN, predicted=PREDICTED)
    assert write_still(subject, tmp_path / "a.svg") == ["stage graph", "timeline"]
    text = (tmp_path / "a.svg").read_text()
    ElementTree.fromstring(text)
    for word in ("s0", "2 devices, micro 2 × 1", "4 B", "seconds"):
        assert f"<!-- {word} -->" in text  # what the letters' outlines say
    write_still(subject, tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_text() == text


def test_the_timeline_is_as_wide_as_the_picture(tmp_path: Path) -> None:
    """A legend in one row once took the place of the timeline, and ended outside of the picture."""
    kinds = ("F", "B", "I", "W", "send", "receive", "reduce", "optimizer")
    trace = large_trace(2, 8)
    spans = [replace(trace.spans[at], kind=kind) for at, kind in enumerate(kinds)] + list(trace.spans[len(kinds) :])
    write_still(Subject(title="", predicted=replace(trace, spans=tuple(spans))), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    (width,) = (float(each) for each in re.findall(r'viewBox="0 0 ([\d.]+) ', text))
    left, right = (
        float(each)
        for each in re.findall(r'id="axes_1">\s*<g id="[^"]*">\s*<path d="M ([\d.]+) [\d.]+ \s*L ([\d.]+)', text)[0]
    )
    assert right - left > 0.7 * width


def test_png_has_the_width_of_a_page(tmp_path: Path) -> None:
    assert write_still(whole_subject(), tmp_path / "a.png") == ["stage graph", "timeline"]
    content = (tmp_path / "a.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width == 1440
    assert height > 600


def test_a_trace_without_a_plan_gives_a_timeline(tmp_path: Path) -> None:
    assert write_still(Subject(title="", predicted=large_trace(4, 20)), tmp_path / "a.svg") == ["timeline"]


def test_a_step_of_zero_seconds_cannot_be_drawn(tmp_path: Path) -> None:
    nothing = replace(large_trace(1, 1), spans=(), step_seconds=0.0)
    with pytest.raises(InvalidInput, match="nothing to draw"):
        write_still(Subject(title="", predicted=nothing), tmp_path / "a.png")
    assert write_still(Subject(title="", predicted=replace(nothing, step_seconds=1.0)), tmp_path / "a.png")


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write"):
        write_still(Subject(title="", predicted=large_trace(1, 1)), tmp_path / "file" / "a.png")


def test_mermaid_has_a_box_per_stage_and_an_arrow_per_edge() -> None:
    lines = mermaid(PLAN).splitlines()
    assert lines[0] == "flowchart TD"
    assert '    stage2["s2<br>F 1.00 s, B 2.00 s<br>2 devices, micro 2 × 1"]' in lines
    assert [line.strip() for line in lines if "-->" in line] == ["stage0 -->|4 B| stage2", "stage1 -->|0 B| stage2"]
