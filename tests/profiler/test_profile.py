"""Profiling real modules: plausible times, and a model that does not change."""

import copy
import math
import time
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs import CostModel
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture
from graphpipe.model.dag_module import DagModule
from graphpipe.model.zoo import zoo
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.profile import profile

QUICK = Effort(repeats=5, seconds=0.002, clock=time.thread_time)  # excludes the time of other processes


def make_cluster(*types: str) -> Cluster:
    link = Link(latency_seconds=5e-5, bandwidth_bytes_per_second=1e9)
    return Cluster(
        name="here",
        device_types=tuple(
            DeviceType(
                name=name,
                memory_bytes=1e9,
                peak_flops_per_second=1e10,
                memory_bytes_per_second=1e10,
                launch_seconds=1e-6,
                half_peak_flops=1e5,
            )
            for name in sorted(set(types))
        ),
        devices=tuple(Device(name=f"{name}{index}", type=name, node="n") for index, name in enumerate(types)),
        intra_node=link,
        inter_node=link,
        cores_per_node=1,
    )


class Join(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2048 + 64, 256)

    def forward(self, wide, noisy):
        return self.linear(torch.cat([wide, noisy], dim=1))


def make_model() -> DagModule:
    torch.manual_seed(0)
    return DagModule(
        {
            "wide": nn.Linear(16, 2048),
            "narrow": nn.Linear(16, 64),
            "noisy": nn.Sequential(nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            "head": Join(),
        },
        inputs={"wide": ["left"], "narrow": ["right"], "noisy": ["narrow"], "head": ["wide", "noisy"]},
    )


EXAMPLES = {"left": torch.randn(4, 16), "right": torch.randn(4, 16)}


def test_the_table_covers_the_graph_with_positive_times():
    model, cluster = make_model(), make_cluster("cpu", "cpu")
    graph = capture(model, EXAMPLES)
    table = profile(model, EXAMPLES, cluster, effort=QUICK)
    CostModel(graph, table, cluster)  # raises if a row is missing or the graph is another one
    for row in table.rows:
        assert row.source == "profiled"
        assert 0 < row.forward(32) < 1
        assert 0 < row.input_gradient(32) + row.weight_gradient(32) < 1
        assert row.error is not None
        assert math.isfinite(row.error)
    first = table.by_op[next(op.name for op in graph.ops if "wide.weight" in op.parameters), "cpu"]
    last = table.by_op[next(op.name for op in graph.ops if "head.linear.weight" in op.parameters), "cpu"]
    assert first.input_gradient(32) == 0.0  # nothing trainable is upstream
    assert last.forward(32) > first.forward(32)  # 541 thousand multiplications per sample, against 33 thousand
    assert last.input_gradient(32) > 0
    assert last.weight_gradient(32) > 0
    assert table.state_bytes_per_parameter_byte == pytest.approx(4.0, rel=0.01)
    assert table.optimizer_seconds_per_parameter_byte > 0
    assert 0 < table.task_overhead_seconds < 0.1


def test_the_model_does_not_change():
    model, cluster = make_model(), make_cluster("cpu", "cpu")
    model(**EXAMPLES).sum().backward()
    state = copy.deepcopy(model.state_dict())
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    inputs = {name: each.clone() for name, each in EXAMPLES.items()}
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    profile(model, EXAMPLES, cluster, effort=QUICK, batch_sizes=(2, 4))
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    assert len(gradients) == len(list(model.parameters()))
    assert all(torch.equal(cast("Tensor", each.grad), gradients[name]) for name, each in model.named_parameters())
    assert all(torch.equal(each, inputs[name]) for name, each in EXAMPLES.items())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training


def test_the_loss_is_timed_with_the_operator_that_computes_the_output():
    def slow_loss(output, targets):
        assert len(output) == len(targets["wanted"][0])
        until = time.thread_time() + 0.02  # the clock of QUICK, which a sleep does not advance
        while time.thread_time() < until:
            pass
        return torch.nn.functional.mse_loss(output, targets["wanted"][0])

    costs = profile(
        make_model(),
        EXAMPLES,
        make_cluster("cpu"),
        loss_fn=slow_loss,
        targets={"wanted": [torch.zeros(4, 256)]},
        effort=QUICK,
        batch_sizes=(2, 8),
    )
    seconds = {row.op: row.forward(2) for row in costs.rows}
    slow = [name for name, forward in seconds.items() if forward > 0.015]
    assert slow == [costs.rows[-1].op]


def test_targets_must_be_tensors():
    with pytest.raises(InvalidInput, match="profile, targets: hold a float, must be tensors"):
        profile(make_model(), EXAMPLES, make_cluster("cpu"), loss_fn=lambda *_: torch.zeros(()), targets=[1.0])


def test_equal_layers_are_measured_once_and_share_a_curve():
    model, inputs = zoo("case-study-small")
    table = profile(model, inputs, make_cluster("cpu"), effort=QUICK, batch_sizes=(2, 4))
    rows = {row.op: row.forward for row in table.rows}
    branches = [[curve for op, curve in rows.items() if op.startswith(name)] for name in ("branch0", "branch1")]
    assert branches[0]
    assert branches[0] == branches[1]


def test_the_optimizer_is_the_users():
    table = profile(
        make_model(),
        EXAMPLES,
        make_cluster("cpu"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        effort=QUICK,
        batch_sizes=(2,),
    )
    assert table.state_bytes_per_parameter_byte == 2.0


def test_a_frozen_model_has_no_backward_and_no_optimizer():
    model = make_model().requires_grad_(False)
    table = profile(model, EXAMPLES, make_cluster("cpu"), effort=QUICK, batch_sizes=(2,))
    assert all(row.input_gradient(2) == row.weight_gradient(2) == 0.0 for row in table.rows)
    assert table.optimizer_seconds_per_parameter_byte == 0.0


def test_a_model_without_data_is_measured_one_operator_at_a_time():
    with torch.device("meta"):
        model = make_model()
    table = profile(model, EXAMPLES, make_cluster("cpu"), effort=QUICK, batch_sizes=(2,))
    assert all(each.is_meta for each in model.parameters())
    assert {row.op for row in table.rows} == {"wide", "narrow", "head"}
    assert all(row.forward(2) > 0 for row in table.rows)
    assert table.state_bytes_per_parameter_byte == pytest.approx(4.0, abs=0.1)


def test_devices_this_machine_does_not_have_are_refused():
    with pytest.raises(InvalidInput, match="types a100, v100, but a machine can measure only one"):
        profile(make_model(), EXAMPLES, make_cluster("v100", "a100"))


@pytest.mark.parametrize("batch_sizes", [(), (0, 1), (1.5,)])
def test_batch_sizes_must_be_positive_integers(batch_sizes):
    with pytest.raises(InvalidInput, match="must be positive integers"):
        profile(make_model(), EXAMPLES, make_cluster("cpu"), batch_sizes=batch_sizes)
