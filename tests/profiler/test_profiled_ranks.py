"""Profiling what each of several devices takes that share the operators of a model."""

import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from models_to_share import gpt
from run_tensor_parallel import batch, captured_of, graph_of

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import Captured
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.operators.op_runs import OpRun, op_runs
from graphpipe.profiler.profile import profile

QUICK = Effort(repeats=2, seconds=0.001, clock=time.thread_time)
CLUSTER = Cluster.preset("local:2")


@cache
def captured() -> Captured:
    return replace(captured_of("gpt"), graph=graph_of("gpt"))


def profiled(tensor: tuple[int, ...], cache_folder: Path | None = None) -> CostTable:
    inputs, model = {"tokens": batch()[0]}, gpt().double()
    return profile(
        model,
        inputs,
        CLUSTER,
        captured=captured(),
        batch_sizes=(1, 2),
        tensor=tensor,
        effort=QUICK,
        cache=cache_folder,
    )


def test_operators_that_devices_share_are_measured_at_each_number_of_them(tmp_path: Path) -> None:
    costs = profiled((1, 2, 4), tmp_path)
    for op, row in zip(captured().graph.order, costs.rows, strict=True):
        shards = captured().graph[op].shards
        possible = [ranks for ranks in (2, 4) if shards is not None and shards.shared_by(ranks)]
        assert [each.ranks for each in row.shared] == possible
        for each in row.shared:
            assert (each.op, each.source) == (row.op, "profiled")
            assert each.forward(2) > 0
            assert each.temporaries is not None
    assert any(row.shared for row in costs.rows)
    again = profiled((2, 1, 4), tmp_path)
    assert again.rows == costs.rows, "what was measured is kept, for each number of devices"


def test_each_device_has_its_part_of_the_weights_and_returns_whole_values() -> None:
    model, inputs = gpt().double(), {"tokens": batch()[0]}

    def runs(ranks: int) -> dict[str, OpRun]:
        found = op_runs(model, captured(), CLUSTER, inputs, ranks=ranks)
        return {run.op: run for run in found}

    before = {name: each.clone() for name, each in model.named_parameters()}
    whole, part = runs(1), runs(2)
    assert set(part) == {op.name for op in captured().graph.ops if op.shards is not None}
    for name, run in part.items():
        shards = captured().graph[name].shards
        assert shards is not None
        held, all_held = (sum(each.numel() for each in it.parameters) for it in (run, whole[name]))
        bytes_of_one = batch()[0].element_size()  # weights are in double precision, and tokens are 64 bits wide
        assert held == all_held - shards.parameter_bytes / bytes_of_one / 2
        shapes = [[each.shape for each in one.call(one.enter(2)[1])] for one in (whole[name], run)]
        assert shapes[0] == shapes[1]
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())


def test_a_number_of_devices_that_share_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"tensor: has 5, but 5 devices can share no operator .* Choose divisors of"):
        profiled((1, 5))
    with pytest.raises(InvalidInput, match=r"tensor: is \(1, 0\), must be positive integers"):
        profiled((1, 0))
    plain = captured_of("gpt")
    with pytest.raises(InvalidInput, match=r"can share no operator of 'Gpt'\. Find layouts with gp\.with_shards"):
        profile(gpt().double(), {"tokens": batch()[0]}, CLUSTER, captured=plain, tensor=(2,))
