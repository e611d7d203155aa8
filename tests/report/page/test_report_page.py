"""The report's page has its panels and correct numbers, and does not load anything from the network."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from subjects import PLAN, PREDICTED, slower, whole_subject

from graphpipe.errors import InvalidInput
from graphpipe.report.content.subject import Subject
from graphpipe.report.page.report_page import write_html

EVERY_PANEL = [
    *(
        "Stages",
        "Timeline",
        "Why it takes this long",
        "Predicted against measured",
        "Memory",
        "Training",
        "Planners",
        "Model",
    ),
    "Where this comes from",
]
VOID = {"meta", "link", "br", "input"}


class Outline(HTMLParser):
    """The elements of a page, and whether each is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "dd", "h1", "h3"):
            self.cells.append(data)


def write(subject: Subject, path: Path) -> tuple[list[str], str]:
    panels = write_html(subject, path)
    return panels, path.read_text(encoding="utf-8")


def test_every_part_of_the_subject_has_a_panel(tmp_path: Path) -> None:
    panels, text = write(whole_subject(), tmp_path / "report.html")
    assert panels == EVERY_PANEL
    outline = Outline(text)
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in outline.tags if tag == "a"]
    assert all(link and link[1:] in ids for link in links)
    assert [tag for tag, _ in outline.tags if tag == "h1"] == ["h1"]
    assert {"header", "nav", "main"} <= {tag for tag, _ in outline.tags}


def test_the_page_does_not_load_other_files(tmp_path: Path) -> None:
    _, text = write(whole_subject(), tmp_path / "report.html")
    for tag, attributes in Outline(text).tags:
        for name in ("src", "href", "srcset", "data"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, f"<{tag} {name}={value}>"


def test_names_are_escaped(tmp_path: Path) -> None:
    _, text = write(whole_subject(), tmp_path / "report.html")
    assert "test <on> test" in "".join(Outline(text).cells)
    assert "<on>" not in text


def test_figures_agree_with_the_values(tmp_path: Path) -> None:
    _, text = write(whole_subject(), tmp_path / "report.html")
    cells = Outline(text).cells
    assert PLAN.fingerprint in cells
    step = PREDICTED.step_seconds
    assert f"{step:.1f} s" in cells
    assert f"{8 / step:,.1f} samples/s" in cells
    assert "the prediction is 20.0% too short" in text  # 1 / 1.25 - 1
    assert "spp: stage s0 lacks 3 bytes" in text
    assert cells[cells.index("train.batch_size") :][:4] == ["train.batch_size", "8", "train.clip_norm", "not set"]


def test_the_evaluations_of_a_run_are_drawn_beside_its_loss(tmp_path: Path) -> None:
    _, text = write(whole_subject(), tmp_path / "report.html")
    (script,) = re.findall(r'data-figure="loss-figure">(.*?)</script>', text)
    held_out = json.loads(script)["data"][1]
    assert (held_out["name"], held_out["x"], held_out["y"]) == ("held-out loss", [10, 30], [0.5, 0.375])
    cells = " ".join(Outline(text).cells)
    assert "Evaluations of the held-out samples 10 0.5 0.25 30 0.375 0.75" in cells
    many = tuple(replace(whole_subject().evaluations[0], step=step) for step in range(1, 51))
    _, text = write(replace(whole_subject(), evaluations=many), tmp_path / "report.html")
    assert "Evaluations of the held-out samples, 20 of 50" in text


def test_figures_are_json_with_finite_numbers(tmp_path: Path) -> None:
    _, text = write(whole_subject(), tmp_path / "report.html")
    scripts = re.findall(r'<script type="application/json" data-figure="([a-z-]+)">(.*?)</script>', text)
    figures = {name: json.loads(body) for name, body in scripts}
    assert figures.keys() == {
        *("stage-graph", "timeline-figure", "memory-figure", "stage-bytes", "loss-figure", "throughput-figure"),
        *("planners-figure", "operator-graph"),
    }
    assert all("NaN" not in body for _, body in scripts)
    labels = [one["text"] for one in figures["stage-graph"]["layout"]["annotations"]]
    assert "4 B" in labels
    assert "<b>s2</b><br>F 1.00 s, B 2.00 s<br>2 devices, micro 2 × 1" in labels


def test_a_trace_without_a_plan_is_shown_as_timeline_and_memory(tmp_path: Path) -> None:
    panels, _ = write(Subject(title="trace", predicted=PREDICTED), tmp_path / "report.html")
    assert panels == ["Timeline", "Memory", "Where this comes from"]
    panels, _ = write(Subject(title="trace", measured=slower(PREDICTED, 2.0)), tmp_path / "report.html")
    assert panels == ["Timeline", "Memory", "Where this comes from"]


def test_a_step_of_zero_seconds_is_shown_without_timeline(tmp_path: Path) -> None:
    nothing = replace(PREDICTED, spans=(), step_seconds=0.0)
    assert write(Subject(title="trace", predicted=nothing), tmp_path / "a.html")[0] == ["Where this comes from"]
    empty = replace(nothing, step_seconds=1.0, memory=())
    assert "Timeline" in write(Subject(title="trace", predicted=empty), tmp_path / "a.html")[0]


def test_a_trace_of_another_plan_is_refused() -> None:
    other = replace(PLAN, batch_size=16)
    with pytest.raises(InvalidInput, match="do not belong together: by plan hash, the predicted trace has"):
        Subject(title="", plan=other, predicted=PREDICTED)
    with pytest.raises(InvalidInput, match="neither a plan nor a trace"):
        Subject(title="")


def test_a_task_on_a_device_that_does_not_run_its_stage_is_refused() -> None:
    # A trace that somebody changed ended a report with an error of the program.
    first, *others = PREDICTED.spans
    moved = replace(PREDICTED, spans=(replace(first, device=PLAN.stages[2].devices[0]), *others))
    with pytest.raises(InvalidInput, match=r"predicted trace: has a task of stage 's0' on device \d, but its devices"):
        Subject(title="", plan=PLAN, predicted=moved)
    unknown = replace(PREDICTED, spans=(replace(first, stage=3), *others))
    with pytest.raises(InvalidInput, match="has a span of stage 3, but the plan has 3 stages"):
        Subject(title="", plan=PLAN, measured=unknown)


def test_the_table_of_stages_shows_what_is_recomputed(tmp_path: Path) -> None:
    plan = replace(PLAN, stages=(replace(PLAN.stages[0], recompute=("s0",)), *PLAN.stages[1:]))
    write_html(replace(whole_subject(), plan=plan, predicted=None, measured=None), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert ">recomputes<" in text
    assert "What a stage recomputes is not kept" in text
    write_html(whole_subject(), tmp_path / "report.html")
    assert "recomputes" not in (tmp_path / "report.html").read_text()


def test_a_stage_whose_name_begins_a_script_does_not_break_the_page(tmp_path: Path) -> None:
    """After `<!--<script>` in a script, browsers do not end it at `</script>`: the rest of the page was missing."""
    first, *others = PLAN.stages
    named = replace(PLAN, stages=(replace(first, name="<!--<script>"), *others))
    _, text = write(Subject(title="plan", plan=named), tmp_path / "report.html")
    scripts = re.findall(r'<script type="application/json" data-figure="[a-z-]+">(.*?)</script>', text, re.DOTALL)
    assert scripts
    assert not any("<" in each for each in scripts)
    assert any("!--" in each for each in scripts)
    assert [*map(json.loads, scripts)]
