"""Operators are measured on the device that the cluster names, or not at all.

The accelerator here is torch's meta device: it runs all of the profiler's code, and only computes nothing.
"""

import pytest
import torch
from fake_device import FakeKind
from run_models import cross_entropy
from torch import nn

from graphpipe.cluster import Cluster, Device, DeviceType
from graphpipe.devices import registry
from graphpipe.devices.cpu import CPU
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.operators.op_runs import op_runs
from graphpipe.profiler.profile import profile
from graphpipe.profiler.profiled_device import device_frequency, profiled_device

QUICK = Effort(repeats=1, most=1, seconds=0.0)
EXAMPLES = {"input": torch.randn(4, 16)}
META = torch.device("meta:0")


class MetaKind(FakeKind):
    """An H100 whose tensors have shapes and no data."""

    def __init__(self) -> None:
        super().__init__("meta")

    def describe(self, device: torch.device) -> str:
        return "NVIDIA H100 80GB HBM3"


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> FakeKind:
    kind = MetaKind()
    monkeypatch.setattr(registry.DEVICE_KINDS, "_items", {"cpu": CPU, "meta": kind})
    return kind


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def named(name: str, cores: int | None = None) -> Cluster:
    cluster = Cluster.preset("local:2")
    devices = tuple(Device(name=each.name, type=name, node=each.node) for each in cluster.devices)
    kind = DeviceType(
        name=name,
        memory_bytes=1e9,
        peak_flops_per_second=1e12,
        memory_bytes_per_second=1e11,
        launch_seconds=1e-6,
        half_peak_flops=1e6,
    )
    return Cluster(
        name="mine",
        device_types=(kind,),
        devices=devices,
        intra_node=cluster.intra_node,
        inter_node=cluster.inter_node,
        cores_per_node=cores,
    )


@pytest.mark.usefixtures("h100")
def test_operators_optimizer_and_loss_run_on_the_accelerator_that_the_cluster_names() -> None:
    """A training profiled the model where its task had built it, and called the times of the CPU those of an H100."""
    module, devices = model(), list[torch.device]()

    def loss_fn(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        devices.extend([output.device, targets.device])
        return cross_entropy(output, targets)

    def optimizer(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        devices.extend(parameter.device for parameter in parameters)
        return torch.optim.SGD(parameters, lr=0.1)

    costs = profile(
        module,
        EXAMPLES,
        Cluster.preset("dgx-h100:1x8"),
        loss_fn=loss_fn,
        targets=torch.zeros(4, dtype=torch.int64),
        batch_sizes=(2, 4),
        effort=QUICK,
        optimizer=optimizer,
    )
    assert {row.device_type for row in costs.rows} == {"h100"}
    assert len(devices) > 4
    assert {device.type for device in devices} == {"meta"}
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}


def test_every_operator_reads_inputs_and_weights_of_its_device() -> None:
    captured = capture_nodes(model(), EXAMPLES)
    for run in op_runs(model(), captured, Cluster.preset("local:1"), dict(EXAMPLES), device=META):
        assert {each.device.type for each in (*run.inputs.values(), *run.parameters)} == {"meta"}
        assert {each.device.type for each in run.call(run.enter(2)[1])} == {"meta"}


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("name", ["h100", "gpu", "fast"])
def test_an_accelerator_of_that_name_or_of_a_free_one_is_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert profiled_device(named(name)) == META
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert profiled_device(named(name)) == torch.device("meta:1")


@pytest.mark.usefixtures("h100")
def test_a_processor_is_measured_although_there_is_an_accelerator() -> None:
    assert profiled_device(Cluster.preset("local:4")) == torch.device("cpu")
    assert profiled_device(named("cpu-big")) == torch.device("cpu")


@pytest.mark.usefixtures("h100")
def test_the_frequency_is_that_of_the_device_that_is_measured() -> None:
    assert device_frequency(named("h100")) == 2e9
    assert device_frequency(Cluster.preset("local:4")) is None


@pytest.mark.usefixtures("h100")
def test_another_accelerator_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'dgx-a100:1x8' has devices of type a100, and .* has NVIDIA H100"):
        profiled_device(Cluster.preset("dgx-a100:1x8"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device")
@pytest.mark.parametrize("cluster", ["summit:1x1", "dgx-a100:1x1", "dgx-h100:1x8"])
def test_a_machine_without_accelerator_does_not_measure_one(cluster: str) -> None:
    what = "and this machine has no accelerator that torch can use. Profile on a machine that has it, or estimate"
    with pytest.raises(InvalidInput, match=what):
        profile(model(), EXAMPLES, Cluster.preset(cluster))
    with pytest.raises(InvalidInput, match="such as cpu"):
        profiled_device(named("rtx4090"))
    assert profiled_device(named("fast", cores=2)) == torch.device("cpu")  # processes that share cores
