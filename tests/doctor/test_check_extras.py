"""`graphpipe doctor` checks the extras that the project declares."""

import re
import tomllib
from pathlib import Path

import pytest

from graphpipe.doctor import check_extras as module
from graphpipe.doctor.check_extras import EXTRAS, check_extras

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_extra_for_users_is_checked() -> None:
    declared = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    names = {extra: {re.split(r"[<>=\[]", each)[0] for each in packages} for extra, packages in declared.items()}
    assert {extra: set(packages) for extra, packages in EXTRAS.items()} == {
        extra: packages for extra, packages in names.items() if extra not in ("docs", "dev", "mutate")
    }


def test_a_missing_extra_is_fine_and_its_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def versions(packages: tuple[str, ...]) -> dict[str, str]:
        return {"python": "3.11.0"} | {name: "not installed" if name == "wandb" else "1.0" for name in packages}

    monkeypatch.setattr(module, "versions", versions)
    found = {finding.name: finding for finding in check_extras()}
    assert {finding.status for finding in found.values()} == {"fine"}
    assert (found["extra wandb"].what, found["extra report"].what) == (
        "wandb not installed",
        "plotly 1.0, matplotlib 1.0",
    )
    assert found["extra wandb"].remedy == "If you want it: pip install 'graphpipe-torch[wandb]'."
    assert not found["extra report"].remedy
