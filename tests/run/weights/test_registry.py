"""Replica synchronisations from outside the package: registered or installed, then chosen by name like any other."""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, final

import pytest
from run_models import fan_batch
from run_replica_syncs import pipeline_of, train
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.run.weights.check_sync import check_sync
from graphpipe.run.weights.gradient_sum import sum_copies
from graphpipe.run.weights.registry import ENTRY_POINTS, REPLICA_SYNCS, find_sync, register_sync
from graphpipe.run.weights.replica_sync import ReplicaSync, SyncTraits
from graphpipe.training.config.from_toml import read_config

CALLS: list[str] = []
"""The calls of methods of `NotedSum`, for stages with several replicas."""


@final
class NotedSum(ReplicaSync):
    """Sums the gradients of replicas in one process, and notes each call."""

    traits: ClassVar = SyncTraits(local_replicas=True, shards_optimizer=True)

    def begin(self) -> None:
        self._note("begin")

    @contextmanager
    def last_backward(self, roots: Sequence[Tensor]) -> Generator[None]:
        assert roots
        self._note("last backward")
        yield

    def reduce(self) -> None:
        self._note("reduce")
        for copies in zip(*self.replicas.parameters, strict=True):
            sum_copies(copies)

    def end(self) -> None:
        self._note("end")

    def _note(self, call: str) -> None:
        if len(self.replicas.ranks) > 1:
            CALLS.append(call)


@pytest.fixture(autouse=True)
def _registry_as_before() -> Generator[None]:
    CALLS.clear()
    before = dict(REPLICA_SYNCS)
    yield
    REPLICA_SYNCS.clear()
    REPLICA_SYNCS.update(before)


def test_a_registered_synchronisation_trains() -> None:
    register_sync("noted", NotedSum)
    pipeline, _ = pipeline_of("four", "allreduce", engine="noted")
    with pipeline:
        loss = pipeline.step(*fan_batch(seed=0))
    assert loss == train("four", "allreduce", steps=1)["losses"][0]
    assert CALLS[0] == "begin"
    assert CALLS[-1] == "end"
    assert Counter(CALLS[1:-1]) == {"last backward": 4, "reduce": 4}  # four replicas, all in this process


def test_a_registered_synchronisation_is_chosen_in_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'task = "task.py:task"\ncluster = "local:1"\n[train]\nbatch_size = 4\nsteps = 1\nengine = "noted"\n'
    )
    with pytest.raises(InvalidInput, match=r"train\.engine: unknown engine 'noted'\. .*Known: allreduce, ddp, fsdp2"):
        read_config(file)
    register_sync("noted", NotedSum)
    assert read_config(file).train.engine == "noted"
    with pytest.raises(InvalidInput, match=r"train\.shard_optimizer: is true, and engine 'noted' shards"):
        read_config(file, ["train.shard_optimizer=true"])


def test_an_installed_package_adds_a_synchronisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gossip-1.0.dist-info").mkdir()
    (tmp_path / "gossip-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: gossip\nVersion: 1.0\n")
    entry = f"[{ENTRY_POINTS}]\ngossip = {__name__}:NotedSum\n"
    (tmp_path / "gossip-1.0.dist-info" / "entry_points.txt").write_text(entry)
    with pytest.raises(InvalidInput, match="unknown engine 'gossip'"):
        check_sync("gossip", shard_optimizer=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_sync("gossip") is NotedSum


def test_a_name_is_registered_once() -> None:
    register_sync("noted", NotedSum)
    register_sync("noted", NotedSum)
    with pytest.raises(InvalidInput, match=r"NotedSum: replica synchronisation 'ddp' is already Ddp"):
        register_sync("ddp", NotedSum)
