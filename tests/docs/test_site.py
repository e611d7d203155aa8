"""The documentation site builds with warnings as errors, and every planner, schedule and room has its page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from graphpipe.plan.registry import PLANNERS
from graphpipe.schedule.registry import SCHEDULERS

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.timeout(300)  # the build draws every picture


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.parametrize(
    "page", [f"planners/{name}" for name in PLANNERS] + [f"schedules/{name}" for name in SCHEDULERS]
)
def test_each_algorithm_has_a_page_with_its_picture(site: Path, page: str) -> None:
    folder, name = page.split("/")
    picture = f"pictures/{folder.removesuffix('s')}-{name}.svg"
    assert picture in (site / page / "index.html").read_text()
    assert "<svg" in (site / picture).read_text()


FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|@import\s+(?:url\()?["']?((?:https?:)?//[^"'\s)]+)"""
    r"""|url\(["']?((?:https?:)?//[^"'\s)]+)"""
)


def test_the_check_finds_what_a_page_fetches() -> None:
    for page in (
        '<script src="https://a.example/x.js"></script>',
        "<link rel=stylesheet href=//a.example/x.css>",
        "@import 'https://a.example/x.css'",
        "p { background: url(http://a.example/x.png) }",
    ):
        assert FETCHED.search(page), page
    assert not FETCHED.search('<a href="https://a.example/">elsewhere</a> <img src="../pictures/x.svg">')


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert len(pages) > 40
    for path in pages:
        assert not (found := FETCHED.search(path.read_text())), f"{path.relative_to(site)}: {found and found[0]}"


ROOMS = sorted(folder.name for folder in (ROOT / "graphpipe").iterdir() if (folder / "__init__.py").exists())


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_page_that_names_its_files(site: Path, room: str) -> None:
    built = (site / "rooms" / room / "index.html").read_text()
    files = {path.name for path in (ROOT / "graphpipe" / room).glob("*.py")} - {"__init__.py"}
    assert all(f"<code>{name}</code>" in built for name in files)
    everywhere = {path.name for path in (ROOT / "graphpipe").rglob("*.py")}
    page = (ROOT / "docs" / "rooms" / f"{room}.md").read_text()
    assert set(re.findall(r"`(?:\w+/)*(\w+\.py)`", page)) <= everywhere | {"test_browser.py"}
