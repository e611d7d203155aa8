"""The command line captures a user's model once, and `--no-cache` captures it again."""

from pathlib import Path

import pytest
from cli_cases import TASK

from graphpipe.cli.main import main
from graphpipe.model.capture_cache import capture_cache


def test_the_second_command_reads_the_capture_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(TASK.replace("import os\n", ""))
    inside = lambda file: file is not None and Path(file).is_relative_to(tmp_path)  # noqa: E731
    monkeypatch.setattr("graphpipe.model.capture_cache.user_modules._is_users", inside)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    captured: list[object] = []
    original = capture_cache.capture_nodes
    monkeypatch.setattr(capture_cache, "capture_nodes", lambda *given: captured.append(given) or original(*given))
    model = f"{tmp_path / 'own.py'}:model"
    problem = [model, "--cluster", "summit:1x2", "--batch", "8"]
    assert main(["plan", *problem, "--schedule", "zb-h1"]) == 0
    assert main(["plan", *problem, "--schedule", "zb-h1"]) == 0
    assert main(["compare", *problem, "--planners", "gpipe"]) == 0
    assert main(["profile", model, "--cluster", "local:1"]) == 0
    assert len(captured) == 1
    assert main(["plan", *problem, "--no-cache"]) == 0
    assert len(captured) == 2
