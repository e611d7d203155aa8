"""The documentation site builds with warnings as errors, and every planner, schedule and room has its page."""

import re
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import get_args

import pytest
from browser import CHROMIUM, Browser
from forked_programs import forked_programs

from graphpipe.planners.registry import PLANNERS
from graphpipe.plans.stage import WeightPolicy
from graphpipe.schedule.schedulers.registry import SCHEDULERS

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.timeout(300)  # The build draws every picture.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [forked_programs() / "python", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.parametrize(
    "page",
    [f"planners/{name}" for name in PLANNERS]
    + [f"schedules/{name}" for name in SCHEDULERS]
    + [f"asynchronous/{name}" for name in get_args(WeightPolicy) if name != "flush"],
)
def test_each_algorithm_has_a_page_with_its_picture(site: Path, page: str) -> None:
    folder, name = page.split("/")
    what = "weights" if folder == "asynchronous" else folder.removesuffix("s")
    picture = f"pictures/{what}-{name}.svg"
    assert picture in (site / page / "index.html").read_text()
    assert "<svg" in (site / picture).read_text()


FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|@import\s+(?:url\()?["']?((?:https?:)?//[^"'\s)]+)"""
    r"""|url\(["']?((?:https?:)?//[^"'\s)]+)"""
)


def test_the_check_finds_what_a_page_loads_from_elsewhere() -> None:
    for page in (
        '<script src="https://a.example/x.js"></script>',
        "<link rel=stylesheet href=//a.example/x.css>",
        "@import 'https://a.example/x.css'",
        "p { background: url(http://a.example/x.png) }",
    ):
        assert FETCHED.search(page), page
    assert not FETCHED.search('<a href="https://a.example/">elsewhere</a> <img src="../pictures/x.svg">')


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert len(pages) > 40
    for path in pages:
        assert not (found := FETCHED.search(path.read_text())), f"{path.relative_to(site)}: {found and found[0]}"


ROOMS = sorted(folder.name for folder in (ROOT / "graphpipe").iterdir() if (folder / "__init__.py").exists())


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_page_that_names_its_files_and_values(site: Path, room: str) -> None:
    built = (site / "rooms" / room / "index.html").read_text()
    files = {path.name for path in (ROOT / "graphpipe" / room).rglob("*.py")} - {"__init__.py"}
    assert all(f"<code>{name}</code>" in built for name in files)
    page = (ROOT / "docs" / "rooms" / f"{room}.md").read_text()
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", page):
        assert "NAME" in name or [*(ROOT / "graphpipe").rglob(name)] or (ROOT / name).exists(), name
    values = re.search(r"^\*\*Values\.\*\* (.*)$", page, re.MULTILINE)
    assert values
    assert set(re.findall(r"`(\w+)`", values[1])) <= classes_in(ROOT / "graphpipe" / room)


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_of_the_repository_that_a_page_names_exist(page: Path) -> None:
    for name in re.findall(r"`((?:graphpipe|tests|docs|examples|bench)/[\w/.-]+)`", page.read_text()):
        assert "NAME" in name or (ROOT / name).exists(), name


def classes_in(folder: Path) -> set[str]:
    texts = (path.read_text() for path in folder.rglob("*.py"))
    return {name for text in texts for name in re.findall(r"^\s*class (\w+)", text, re.MULTILINE)}


def test_the_rooms_name_their_neighbours(site: Path) -> None:
    assert neighbours(site, "files", "Imports") == set()
    assert neighbours(site, "graph", "Imports") == {"files"}
    assert neighbours(site, "schedule", "Imports") == {"cluster", "costs", "plans"}
    assert neighbours(site, "simulator", "Imported by") == {
        *("cli", "planners", "planning", "profiler", "report", "training")
    }


def test_the_overview_lists_every_room_below_those_it_imports(site: Path) -> None:
    order = re.findall(r"^\| \[`(\w+)`\]", (ROOT / "docs" / "rooms" / "index.md").read_text(), re.MULTILINE)
    assert sorted(order) == ROOMS
    for room in ROOMS:
        assert neighbours(site, room, "Imports") <= set(order[: order.index(room)])


def neighbours(site: Path, room: str, what: str) -> set[str]:
    line = re.search(rf"<strong>{what}:</strong>(.*)", (site / "rooms" / room / "index.html").read_text())
    assert line
    return set(re.findall(r"<code>(\w+)</code>", line[1]))


INNER = {"CostModel", "StageMemory", "TaskMemory", "TaskSeconds", "Leaf", "Parallel", "Read", "Series"} | {
    *("LoweredSchedule", "Compute", "Send", "Receive", "Reduce", "ReduceTied", "Transfer", "Action")
}
"""Values that only contributors meet."""


@pytest.mark.parametrize("room", ["graph", "cluster", "costs", "plans", "schedule", "trace"])
def test_the_reference_has_every_value(site: Path, room: str) -> None:
    module = import_module(f"graphpipe.{room}")
    check_reference(site, {name for name in module.__all__ if isinstance(getattr(module, name), type)} - INNER)


def test_the_reference_has_every_public_name(site: Path) -> None:
    check_reference(site, set(import_module("graphpipe").__all__))


def check_reference(site: Path, names: set[str]) -> None:
    pages = "".join((site / page / "index.html").read_text() for page in ("api", "values", "errors"))
    assert names
    assert {name for name in names if not re.search(rf'id="graphpipe[\w.]*\.{name}"', pages)} == set()


def test_every_fence_becomes_a_code_block(site: Path) -> None:
    for path in site.rglob("index.html"):
        assert "not-run=" not in path.read_text(), path
        # A fence that Markdown does not recognise becomes inline code that begins with its language.
        assert re.search(r"<code>(?:bash|console|python|text|toml)\n", path.read_text()) is None, path


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
def test_in_a_browser_the_site_loads_nothing_from_elsewhere_and_follows_the_system(site: Path, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}/"
        with Browser(tmp_path) as browser:
            for page, dark in (("", True), ("planners/graphpipe/", False), ("values/", True), ("tutorial/", False)):
                browser.look(400, dark=dark)
                browser.send("Page.navigate", url=home + page)
                browser.wait(f"document.readyState === 'complete' && location.href === '{home + page}'")
                browser.wait(f"document.body.dataset.mdColorScheme === '{'slate' if dark else 'default'}'")
                assert browser.evaluate("document.documentElement.scrollWidth") == 400
            # The table of models made a page of 39,500 pixels.
            browser.send("Page.navigate", url=f"{home}models/")
            browser.wait("document.querySelector('.table-search') !== null")
            assert browser.evaluate("document.documentElement.scrollHeight") < 15_000
            # Its columns touched each other, because the theme gives its style to tables without a class.
            padding = browser.evaluate("getComputedStyle(document.querySelector('[data-long] td')).paddingLeft")
            assert float(padding.removesuffix("px")) > 4
            browser.evaluate(
                "(() => { const field = document.querySelector('.table-search'); field.value = 'qwen3 moe';"
                "field.dispatchEvent(new Event('input')); })()"
            )
            shown = "[...document.querySelector('[data-long]').tBodies[0].rows].filter((row) => !row.hidden)"
            found = browser.evaluate(f"{shown}.map((row) => row.textContent)")
            assert 0 < len(found) < 12
            assert all("qwen3" in row and "moe" in row for row in found)
            first = browser.evaluate("document.querySelector('.table-said').innerText")
            assert first == f"{first.split()[0]} rows"
            assert [problem for problem in browser.problems if home not in problem] == []
        server.shutdown()
