"""Where results are kept for later commands."""

import os
from pathlib import Path

import pytest

from graphpipe.files.cache_folder import cache_folder, keep_newest, make_private


def test_the_folder_is_where_the_specification_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/cache")
    assert cache_folder() == Path("/somewhere/cache/graphpipe")
    monkeypatch.setenv("HOME", "/home/somebody")
    for ignored in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == Path("/home/somebody/.cache/graphpipe")


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None


def test_new_folders_are_for_their_owner_only_and_others_do_not_change(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for _ in range(2):
        make_private(tmp_path / "a" / "b")
    assert [path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")] == [
        *(0o755, 0o700, 0o700)
    ]


def test_only_the_newest_entries_stay_files_and_folders_alike(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "part.json").touch()
    for age, name in enumerate(("newest", "second", "oldest")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    os.utime(tmp_path / "old", (1e9 - 1.5, 1e9 - 1.5))
    keep_newest(tmp_path, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "second", "old", "oldest"}
    keep_newest(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "second"}
    keep_newest(tmp_path, 0)
    assert [*tmp_path.iterdir()] == []
