"""If a machine does not permit network namespaces, the tests that need them are skipped with the reason."""

from pathlib import Path

import pytest

from bench.running.hosts import namespaces

TOOLS = ("unshare", "nsenter", "ip", "tc")


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_PATH", str(tmp_path))
    assert namespaces.why_not() == "unshare, nsenter, ip, tc not installed (iproute2, util-linux)"


def test_a_system_that_permits_no_namespaces_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in TOOLS:
        (tmp_path / tool).write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setattr(namespaces, "_PATH", str(tmp_path))
    message = "network namespaces are not permitted: unshare failed: Operation not permitted"
    assert namespaces.why_not() == message
