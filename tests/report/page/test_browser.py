"""The report in a real browser: it loads without errors, hover and zoom work, and it is fast."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from latin_square import latin_square
from subjects import PLAN, large_trace, whole_subject

from graphpipe.report.content.subject import Subject
from graphpipe.report.figures.palette import code
from graphpipe.report.page.report_page import write_html
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.simulator.simulate import simulate

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
FIGURE = "document.getElementById('timeline-figure')"
RANGE = f"{FIGURE}._fullLayout.xaxis.range.map(Number)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(whole_subject(), path)
    return path


def show(browser: Browser, page: Path, width: int = 1280, dark: bool = False) -> None:
    """Open the page in a window high enough to show all of it."""
    browser.problems.clear()
    browser.look(width, 7000, dark)
    browser.open(page)
    browser.wait("[...document.querySelectorAll('.figure')].every((one) => one.dataset.drawn)")


def place(browser: Browser, seconds: float, row: int) -> tuple[float, float]:
    """Return the window coordinates of a time in a row of the timeline."""
    x, y = browser.evaluate(
        f"""(() => {{
            const box = {FIGURE}.getBoundingClientRect(), {{ _size, xaxis, yaxis }} = {FIGURE}._fullLayout;
            const {{ extra }} = JSON.parse(document.querySelector('[data-figure=timeline-figure]').textContent);
            const middle = (extra.rows[{row}].from + extra.rows[{row}].to) / 2;
            return [box.left + _size.l + xaxis.d2p({seconds}), box.top + _size.t + yaxis.d2p(middle)];
        }})()"""
    )
    return x, y


def fills(browser: Browser) -> int:
    return browser.evaluate(f"Number({FIGURE}.dataset.fills ?? 0)")


def wait_for_fill(browser: Browser, before: int) -> None:
    browser.wait(f"Number({FIGURE}.dataset.fills ?? 0) > {before}")


@pytest.mark.parametrize(("width", "dark"), latin_square([1280, 400], [False, True]))
def test_every_figure_is_drawn_without_errors(browser: Browser, page: Path, width: int, dark: bool) -> None:
    show(browser, page, width, dark)
    assert browser.evaluate("document.querySelectorAll('.figure .main-svg').length") >= 8
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    tick = browser.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
    light_ink = sum(map(int, tick[4:-1].split(","))) > 382
    assert light_ink is dark, f"text {tick} on {ground}"
    assert browser.problems == []
    if folder := os.environ.get("GRAPHPIPE_SCREENSHOTS"):  # for a person to look at
        browser.picture(Path(folder) / f"report-{width}-{'dark' if dark else 'light'}.png")


def test_figures_outside_the_window_are_drawn_too(browser: Browser, page: Path) -> None:
    browser.problems.clear()
    browser.look(1280, 600)
    browser.open(page)
    browser.wait("[...document.querySelectorAll('.figure')].every((one) => one.dataset.drawn)")
    assert browser.evaluate("document.documentElement.scrollHeight") > 3 * 600
    assert browser.problems == []


@pytest.mark.parametrize(("width", "lines"), [pytest.param(1280, 1, marks=pytest.mark.slow), (400, 2)])
def test_row_names_take_two_lines_in_a_narrow_window(browser: Browser, page: Path, width: int, lines: int) -> None:
    show(browser, page, width)
    names = browser.evaluate(f"[...{FIGURE}.querySelectorAll('.ytick text')].map((one) => one.innerHTML)")
    assert [max(1, name.count("<tspan")) for name in names] == [lines] * len(names)


def test_colours_change_with_the_colour_scheme(browser: Browser, page: Path) -> None:
    show(browser, page)
    fill = "getComputedStyle(document.querySelector('.xtick text')).fill"
    before = browser.evaluate(fill)
    browser.look(1280, 7000, dark=True)
    browser.wait(f"{fill} !== '{before}'")
    assert browser.problems == []


def test_cells_show_the_tasks_at_their_times(browser: Browser, page: Path) -> None:
    show(browser, page)
    drawn = browser.evaluate(f"(() => {{ const d = {FIGURE}.data[0]; return [d.z, d.x, d.y]; }})()")
    cells, edges, tops = drawn
    assert tops[1] > 0  # There is a gap above the first device, so row 1 of the heatmap is row 0 of the timeline.
    column = next(number for number, edge in enumerate(edges) if edge > 1.0) - 1
    # Device 0 does the forward of micro-batch 0 of stage 0 from 0 to 2 seconds.
    assert cells[1][column] == code("F", 0)
    assert cells[1][0] == code("F", 0)
    assert cells[0] == [None] * len(cells[0])


def test_pointing_at_a_task_shows_seconds_and_samples(browser: Browser, page: Path) -> None:
    show(browser, page)
    x, y = place(browser, 1.0, 0)
    browser.mouse("mouseMoved", x - 3, y)
    browser.mouse("mouseMoved", x, y)
    browser.wait(f"{FIGURE}.querySelector('.hoverlayer .hovertext') !== null")
    hover = browser.evaluate(f"{FIGURE}.querySelector('.hoverlayer .hovertext').textContent")
    assert "d0 predicted" in hover
    assert "forward of s0, micro-batch 0" in hover
    assert "2 samples: 0 to 1" in hover
    assert "2.000 s, from 0.000 s to 2.000 s" in hover


@pytest.mark.slow
def test_a_segment_without_flushes_shows_versions(browser: Browser, tmp_path: Path) -> None:
    plan = with_policy(PLAN, "moving-average")
    write_html(Subject(title="segment", plan=plan, predicted=simulate(plan, mini_batches=3)), tmp_path / "page.html")
    show(browser, tmp_path / "page.html")
    marks = browser.evaluate(f"{FIGURE}.data[1].text")
    assert {" v0", " v1"} <= {mark.lstrip("0123456789") for mark in marks}
    assert len({*browser.evaluate(f"{FIGURE}.data[0].z.flat()")}) > 2 * 2 * len(plan.stages)  # two shades of F and B
    assert "reconstructed from" in browser.evaluate(f"{FIGURE}.data[0].text.flat().join()")
    assert "Versions of the weights, under moving-average" in browser.evaluate("document.body.textContent")
    assert browser.problems == []


def test_dragging_zooms_and_fills_the_cells_again(browser: Browser, page: Path) -> None:
    show(browser, page)
    before = fills(browser)
    (left, y), (right, _) = place(browser, 1.0, 0), place(browser, 3.0, 0)
    browser.mouse("mouseMoved", left, y)
    browser.mouse("mousePressed", left, y)
    for step in range(1, 6):
        browser.mouse("mouseMoved", left + step * (right - left) / 5, y)
    browser.mouse("mouseReleased", right, y)
    wait_for_fill(browser, before)
    low, high = browser.evaluate(RANGE)
    assert (low, high) == (pytest.approx(1.0, abs=0.1), pytest.approx(3.0, abs=0.1))
    edges = browser.evaluate(f"{FIGURE}.data[0].x")
    assert (edges[0], edges[-1]) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.slow
def test_buttons_and_keys_zoom_and_move_within_the_step(browser: Browser, page: Path) -> None:
    show(browser, page)
    whole = browser.evaluate(RANGE)
    browser.evaluate(f"{FIGURE}.parentElement.focus()")
    for key, check in (
        ("+", lambda low, high: (high - low) == pytest.approx((whole[1] - whole[0]) / 2)),
        ("ArrowRight", lambda low, high: low > whole[1] / 4),
        ("ArrowLeft", lambda low, high: low == pytest.approx(whole[1] / 4)),
        ("0", lambda low, high: [low, high] == whole),
    ):
        before = fills(browser)
        browser.key(key)
        wait_for_fill(browser, before)
        assert check(*browser.evaluate(RANGE)), key
    before = fills(browser)
    browser.evaluate("document.querySelector('[data-zoom=in]').click()")
    wait_for_fill(browser, before)
    assert browser.evaluate(RANGE) != whole
    assert browser.problems == []


@pytest.mark.slow
def test_the_tab_key_reaches_every_element_and_leaves_the_page(browser: Browser, page: Path) -> None:
    show(browser, page)
    seen: list[str] = []
    for _ in range(80):
        browser.key("Tab")
        name = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
        seen.append(browser.evaluate(f"document.activeElement === document.body ? '' : ({name}).slice(0, 60)"))
        if not seen[-1]:
            break
    assert seen[0] == "Skip to the report"
    assert seen[-1] == "", "the focus never leaves the page"
    for name in ("Timeline", "Zoom in", "Timeline of one training step, a row per device", "Largest differences"):
        assert name in seen


@pytest.mark.slow
def test_ten_thousand_tasks_open_in_two_seconds(browser: Browser, tmp_path: Path) -> None:
    write_html(Subject(title="10,000 tasks", predicted=large_trace(16, 313)), tmp_path / "report.html")
    browser.look(1280, 900)
    drawn = []
    for _ in range(3):  # The machine may be busy with other work.
        browser.open(tmp_path / "report.html")
        browser.wait(f"{FIGURE}?.dataset.drawn")
        drawn.append(browser.evaluate("performance.now() / 1000"))
        if drawn[-1] < 2.0:
            return
    pytest.fail(f"drawn after {drawn} seconds")


@pytest.mark.slow
def test_two_hundred_thousand_tasks_are_merged_into_pixels(browser: Browser, tmp_path: Path) -> None:
    browser.problems.clear()
    write_html(Subject(title="200,000 tasks", predicted=large_trace(64, 1563)), tmp_path / "report.html")
    browser.look(1280, 900)
    browser.open(tmp_path / "report.html")
    browser.wait(f"{FIGURE}?.dataset.drawn", seconds=40.0)
    assert browser.evaluate("document.querySelectorAll('*').length") < 3000
    before = fills(browser)
    for _ in range(9):
        browser.evaluate("document.querySelector('[data-zoom=in]').click()")
        wait_for_fill(browser, before)
        before = fills(browser)
    # Zoomed in far enough, tasks are shown separately again, with their numbers.
    assert browser.evaluate(f"{FIGURE}.data[1].text.length") > 0
    assert browser.problems == []
