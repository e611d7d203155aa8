"""The documentation site builds with warnings as errors, and every planner and schedule has its page and picture."""

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


def test_the_site_fetches_no_fonts(site: Path) -> None:
    assert "fonts.g" not in (site / "index.html").read_text()
