"""A panel from outside the package is shown on the page, below the built-in ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from subjects import PREDICTED

from graphpipe.errors import InvalidInput
from graphpipe.report.content.subject import Subject
from graphpipe.report.page import registry
from graphpipe.report.page.html_page import note
from graphpipe.report.page.panel import Panel
from graphpipe.report.page.registry import all_panels, register_panel
from graphpipe.report.page.report_page import write_html

SUBJECT = Subject(title="trace", predicted=PREDICTED)
SOURCE = """
from graphpipe.report.page.panel import Panel

ENERGY = Panel(name="energy", title="Energy", build=lambda subject: "<p>240 J</p>")
"""


@pytest.fixture(autouse=True)
def only_for_one_test() -> Iterator[None]:
    with registry.PANELS.restored():
        yield


def test_a_registered_panel_is_shown(tmp_path: Path) -> None:
    register_panel(Panel(name="energy", title="Energy", build=lambda subject: note(f"{subject.batch_size} samples")))
    register_panel(Panel(name="carbon", title="Carbon", build=lambda subject: None))
    titles = write_html(SUBJECT, tmp_path / "report.html")
    assert titles == ["Timeline", "Memory", "Where this comes from", "Energy"]
    text = (tmp_path / "report.html").read_text()
    assert '<a href="#energy">Energy</a>' in text
    assert '<p class="note">8 samples</p>' in text
    assert "Carbon" not in text


def test_the_panel_of_an_installed_package_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "energy_panel.py").write_text(SOURCE)
    declared = tmp_path / "energy_panel-1.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: energy_panel\nVersion: 1\n")
    (declared / "entry_points.txt").write_text("[graphpipe.panels]\nenergy = energy_panel:ENERGY\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert write_html(SUBJECT, tmp_path / "report.html")[-1] == "Energy"
    assert "240 J" in (tmp_path / "report.html").read_text()


def test_a_name_can_be_registered_only_once() -> None:
    register_panel(all_panels()["memory"])
    with pytest.raises(InvalidInput, match="panel 'memory': another panel has this name"):
        register_panel(Panel(name="memory", title="Memory", build=lambda subject: None))
