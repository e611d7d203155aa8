"""Starts what takes longest first, and starts ranks quickly."""

import sys

import pytest
import torch
from forked_programs import programs
from hypothesis import settings

# Kernels sum in another order with another number of threads: ranks are compared bit for bit with one thread each.
torch.set_num_threads(1)
# Where cores are shared, an example of a third of a millisecond has taken half a second. Whole tests have their limits.
settings.register_profile("shared cores", deadline=None)
settings.load_profile("shared cores")

LONGEST = (
    *("test_snippets", "test_hugging_face", "test_engines", "test_train_elastic", "test_hosts", "test_shapes"),
    *("test_checkpoint_folder", "test_memory", "test_other_engines", "test_train_killed", "test_faults"),
    *("test_help_examples", "test_train", "test_train_telemetry", "test_launch", "test_train_resume"),
    *("test_lower_bound", "test_recompute", "test_site", "test_shared", "test_own_task", "test_notebook"),
)
"""Files of half a minute and more: begun last, one of them would keep a single worker busy at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the others stay in order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.fixture
def warm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process start Python in forks of a server.

    For tests that are not about how processes start and end, and kill none from outside: a fork's parent is the server.
    """
    monkeypatch.setattr(sys, "executable", str(programs() / "python"))
