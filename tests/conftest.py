"""Begins the longest tests first, starts ranks quickly, and repeats tests of running processes once if they fail."""

import gc
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
import torch
from forked_programs import forked_programs
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from execnet import XSpec

# Each of some hundred processes would compile graphpipe again where bytecode is not kept, and pytest rewrite each test.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Who starts the tests in the background may ignore these, and ranks keep what was ignored. Tests send them.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
# Kernels sum in another order with another number of threads: ranks are compared bit for bit with one thread each.
torch.set_num_threads(1)
# Where cores are shared, an example of a third of a millisecond has taken half a second. Whole tests have their limits.
# The same examples every time: a change is judged by what it changed. `make explore` draws others.
settings.register_profile("same", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
# A wrong line is noticed by its first failing example: `make mutate` does not look for the smallest.
settings.register_profile("mutate", deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
settings.load_profile("same")

# Captures and measured costs of the tests stay apart from those of the person who runs them. Workers share one cache.
if "PYTEST_XDIST_WORKER" not in os.environ:
    CACHE = TemporaryDirectory(prefix="graphpipe-tests-")
    os.environ["XDG_CACHE_HOME"] = CACHE.name

TESTS = Path(__file__).parent
LONGEST = (
    *("run/test_tensor_parallel", "run/weights/test_replica_sync", "cli/test_train_elastic", "docs/test_site"),
    *("model/capture/test_capture", "integrations/test_transformers_trainer", "run/test_hugging_face"),
    *("model/split/test_split", "model/capture_cache/test_capture_cache", "cli/test_help_examples", "cli/test_verbs"),
    *("docs/test_snippets", "training/task/test_training_by_plan", "run/device/test_memory_usage", "cli/test_train"),
    *("report/page/test_browser", "run/stage/test_shapes", "run/segments/test_weight_policies"),
    *("cli/test_train_resume", "run/faults/test_faults", "cli/test_train_telemetry"),
    *("model/capture/test_batch_statistics", "zoo_graphs/test_zoo_graph"),
)
"""Files of a quarter of a minute and more: begun last, one of them would keep a single worker busy at the end."""

OF_RUNNING_PROCESSES = {"cli", "docs", "doctor", "launch", "link_profile", "profiler", "report", "run", "training"}
"""Rooms whose tests start processes, measure time, or wait for either. Other work on the machine can disturb them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the others stay in order. Repeat disturbed tests once: the summary names them."""
    places = {TESTS / f"{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))
    for item in items:
        if item.path.is_relative_to(TESTS) and item.path.relative_to(TESTS).parts[0] in OF_RUNNING_PROCESSES:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    """Leave what the collection made out of collections of garbage, also in forks, which would copy what they visit."""
    gc.collect()
    gc.freeze()


def pytest_configure() -> None:
    """Let the processes that workers start by multiprocessing be forks of the server too."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        multiprocessing.set_executable(str(forked_programs() / "python"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: "list[XSpec]") -> None:
    """Start the workers as forks of a server, so that torch and the other large packages are imported once."""
    for spec in specs:
        spec.python = str(forked_programs() / "worker")


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process start Python in forks of a server.

    Not for tests of how processes start and end, nor for tests that kill a process: the parent of a fork is the server.
    """
    monkeypatch.setattr(sys, "executable", str(forked_programs() / "python"))
