"""Ports are opened only where the user says, nothing is unpickled, and file names cannot leave their folder."""

import ast
import os
import pickle
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from bench.running.hosts.listeners import listeners
from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import CheckpointCorrupt, GraphPipeError, InvalidInput
from graphpipe.graph import Graph
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.manifest import FileEntry, Manifest, TensorEntry
from graphpipe.run.checkpoint.safetensors_files import read_tensors
from graphpipe.run.meeting.host_address import INTERFACE, bind_gloo_to_route_of, interface_of
from graphpipe.run.meeting.rendezvous_store import bound_store
from graphpipe.run.sources.dcp_metadata import read_dcp_metadata
from graphpipe.trace import Trace
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.config.settings import RunSettings, TrainConfig

PACKAGE = Path(__file__).parent.parent / "graphpipe"
INERT = "run/sources/dcp_metadata.py"
"""Reads a pickle of torch with an unpickler that makes records without behaviour, and refuses every other name."""
UNPICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
OBJECT_COLLECTIVES = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
}

WORDS = UNPICKLES | OBJECT_COLLECTIVES | {"load", "package"}
"""A file without any of them is not parsed, which takes longest."""


def test_nothing_is_unpickled() -> None:
    """Check the source of the package. `torch.load` appears as the attribute `load` of the name `torch`.

    It may be called with `weights_only=True`, which makes nothing but tensors: checkpoints of torch hold them so.
    """
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path == PACKAGE / INERT or not any(word in text for word in WORDS):
            continue
        tree = ast.parse(text)
        safe = {
            node.func
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and any(ast.unparse(each) == "weights_only=True" for each in node.keywords)
        }
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0], *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Attribute):
                names = [node.attr]
                risky = ast.unparse(node) in ("torch.load", "torch.package") and node not in safe
                assert not risky, f"{path}:{node.lineno}"
            assert not {*names} & (UNPICKLES | OBJECT_COLLECTIVES), f"{path}:{getattr(node, 'lineno', 0)}"


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def test_the_list_of_a_checkpoint_of_torch_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(InvalidInput, match="mkdir"):
        read_dcp_metadata(tmp_path)
    assert not mark.exists()


def manifest(path: Path) -> None:
    Manifest.load(path)


def tensors(path: Path) -> None:
    read_tensors(path.parent, {"weight": TensorEntry(file=path.name, dtype="float32", shape=(1,))})


LOADERS = [
    *(Plan.load, Graph.load, CostTable.load, Trace.load, Cluster.load, TrainConfig.load),
    *(read_config, manifest, tensors),
]


@pytest.mark.parametrize("load", LOADERS, ids=lambda load: getattr(load, "__qualname__", "load"))
def test_a_pickle_in_place_of_a_file_is_refused(load: Callable[[Path], object], tmp_path: Path) -> None:
    mark, path = tmp_path / "exploded", tmp_path / "file"
    path.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises((GraphPipeError, SafetensorError)):
        load(path)
    assert not mark.exists()
    pickle.loads(path.read_bytes())
    assert mark.exists()  # so the check above would have failed


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "deep/inside", "..", "."])
def test_a_manifest_names_files_in_its_folder_only(name: str, tmp_path: Path) -> None:
    entry = FileEntry(bytes=1, sha256="0" * 64)
    Manifest(files={name: entry}).save(tmp_path / "manifest.json")
    with pytest.raises(CheckpointCorrupt, match="which is not in its folder"):
        Manifest.load(tmp_path / "manifest.json")
    elsewhere = TensorEntry(file=name, dtype="float32", shape=())
    Manifest(tensors={"weight": elsewhere}).save(tmp_path / "manifest.json")
    with pytest.raises(CheckpointCorrupt, match=f"does not list the file '{name}'"):
        Manifest.load(tmp_path / "manifest.json")


@pytest.mark.parametrize("name", ["../outside", "/outside", "deep/inside", ".."])
def test_a_run_stays_in_its_directory(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"run.name: is '.*', which is not inside run.directory"):
        RunSettings(name=name)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="listening sockets are read from Linux's /proc")
def test_ranks_meet_at_the_address_they_are_given_and_no_other() -> None:
    with socket.create_server(("127.0.0.2", 0)) as probe:
        port = probe.getsockname()[1]
    store = bound_store(0, "127.0.0.2", port, timedelta(seconds=10))
    assert [str(each.address) for each in listeners() if each.port == port] == ["127.0.0.2"]
    other = bound_store(1, "127.0.0.2", port, timedelta(seconds=10))
    store.set("word", "here")
    assert other.get("word") == b"here"
    with pytest.raises(RuntimeError, match="EADDRINUSE"):
        bound_store(0, "127.0.0.2", port, timedelta(seconds=10))
    with pytest.raises(RuntimeError, match="Cannot assign requested address"):
        bound_store(0, "192.0.2.1", port, timedelta(seconds=10))


def test_ranks_stay_on_the_interface_on_which_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {"lo": ["127.0.0.1", "::1"], "eth0": ["192.0.2.5", "fe80::1%eth0"]}
    by_name = {name: [SimpleNamespace(address=each) for each in found] for name, found in cards.items()}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: by_name)
    assert [interface_of(address) for address in ("192.0.2.5", "fe80::1", "192.0.2.6", "")] == ["eth0", "eth0", "", ""]
    monkeypatch.setenv(INTERFACE, "")  # Restored at the end of the test.
    for host, expected in {"127.0.0.1": "lo", "localhost": "lo", "127.0.1.1": "lo", "no.such.invalid": None}.items():
        monkeypatch.delenv(INTERFACE, raising=False)
        bind_gloo_to_route_of(host)
        assert os.environ.get(INTERFACE) == expected, host
    monkeypatch.setenv(INTERFACE, "eth7")
    bind_gloo_to_route_of("127.0.0.1")
    assert os.environ[INTERFACE] == "eth7"
