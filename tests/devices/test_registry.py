"""A kind of device from outside the package: registered in one place, then used by every room that computes."""

from pathlib import Path

import pytest
import torch
from fake_device import FakeKind
from run_chain import INTERLEAVED, chain_batch, chain_pipeline

from graphpipe.cluster import Cluster
from graphpipe.devices import registry
from graphpipe.devices.cpu import CPU
from graphpipe.devices.device_kind import DeviceKind
from graphpipe.devices.registry import DEVICE_KINDS, default_kind, kind_of, register_device_kind
from graphpipe.doctor.check_ranks import environment
from graphpipe.doctor.check_torch import check_torch
from graphpipe.errors import InvalidInput
from graphpipe.run import Pipeline
from graphpipe.run.comm.world import join
from graphpipe.run.device.precision import check_precision_of_device
from graphpipe.training.elastic.visible_gpus import visible_gpus


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, DeviceKind]:
    """Registers for the duration of a test, with the CPU as the only other kind."""
    known: dict[str, DeviceKind] = {"cpu": CPU}
    monkeypatch.setattr(registry.DEVICE_KINDS, "_items", known)
    return known


@pytest.mark.usefixtures("kinds")
def test_a_registered_kind_is_chosen_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKind("xpu")
    assert default_kind() is CPU
    register_device_kind(fake)
    assert default_kind() is fake
    monkeypatch.setenv("LOCAL_RANK", "1")
    world = join(None, 1.0)
    assert (world.device, world.backend, world.in_order) == (torch.device("xpu:1"), "fakeccl", True)
    assert fake.asked["select xpu:1"] == 1
    with pytest.raises(InvalidInput, match=r"would compute on xpu:2, the machine has 2 XPU devices"):
        join("xpu:2", 1.0)
    with pytest.raises(InvalidInput, match=r"'gpu' is no device. Write cpu, xpu or xpu:0."):
        join("gpu", 1.0)
    with pytest.raises(InvalidInput, match=r"is fp16, which xpu devices cannot compute. Choose fp32 or bf16."):
        check_precision_of_device(world.device, "fp16")
    check_precision_of_device(world.device, "bf16")
    assert environment(world.device).items() >= {"device": "Fake 1", "fake": "1.0", "fakeccl": "2.7"}.items()
    assert environment(torch.device("cpu"))["fakeccl"] == "none"
    monkeypatch.setenv("FAKE_VISIBLE_DEVICES", "a,b")
    cluster = Cluster.resolve("local:2")
    assert visible_gpus(cluster, [cluster.devices[1].name]) == {"FAKE_VISIBLE_DEVICES": "b"}
    findings = {finding.name: finding for finding in check_torch()}
    assert findings["fakeccl"].what == "2.7"
    assert findings["GPU 0"].what.startswith("Fake 0 does not compute: ")  # no torch has such a device


def test_a_pipeline_asks_only_the_kind_of_its_device(kinds: dict[str, DeviceKind]) -> None:
    twin = training()
    kinds["cpu"] = fake = FakeKind("cpu")
    fake.count = lambda: 0  # This torch names its devices without a number.
    fake.on_host = True
    assert training() == twin
    pipeline = offloading()
    assert pipeline.step(*chain_batch()) > 0
    assert {sample.bytes for sample in one_device().trace().memory} == {7.0}
    wanted = {"stream", "clock", "reset peak", "host buffer", "seed", "random state", "random state set"}
    assert wanted <= fake.asked.keys()


def training() -> list[float]:
    pipeline, _ = chain_pipeline(INTERLEAVED, record=True)
    return [pipeline.step(*chain_batch(seed=step)) for step in range(2)]


def offloading() -> Pipeline:
    return chain_pipeline([(["a", "b"], [0], 2), (["c", "d"], [1], 2)], offload={0: ("a",)})[0]


def one_device() -> Pipeline:
    pipeline, _ = chain_pipeline([(["a", "b", "c", "d"], [0], 2)], record=True)
    pipeline.step(*chain_batch())
    return pipeline


@pytest.mark.usefixtures("kinds")
def test_two_kinds_of_one_name_are_an_error_and_an_unknown_kind_has_no_streams() -> None:
    with pytest.raises(InvalidInput, match=r"another kind of device has this name"):
        register_device_kind(FakeKind("cpu"))
    unknown = torch.device("mps")
    assert kind_of(unknown).new_stream(unknown) is CPU.new_stream(torch.device("cpu"))
    assert not kind_of(unknown).on_host  # The clock of the host's threads would not see its work.
    assert join("mps", 1.0).device == unknown


def test_no_other_room_names_a_kind_or_its_backend() -> None:
    package = Path(registry.__file__).parents[1]
    names = {word for kind in DEVICE_KINDS.values() for word in (kind.name, kind.backend)} - {"cpu"}
    assert names >= {"cuda", "nccl", "gloo"}
    naming = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(f'"{name}"' in path.read_text(encoding="utf-8") for name in names)
    }
    assert naming == {"devices/cpu.py", "devices/cuda.py"}
