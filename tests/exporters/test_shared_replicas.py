"""Formats that hold how many devices share a replica, and those that refuse it."""

import json

import pytest
from shared_replicas import chain, layer, problem, shards

from graphpipe.errors import InvalidInput
from graphpipe.exporters.layers import write_layers
from graphpipe.exporters.megatron import write_megatron
from graphpipe.exporters.torch_pipelining import write_torch_pipelining
from graphpipe.exporters.torchtitan import write_torchtitan
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.plans import Plan


def planned(*tensor: int) -> Plan:
    """Return two stages of two layers on four devices each."""
    graph = chain(*(layer(f"layers.{at}", shards()) for at in range(4)))
    stages = tuple(
        HandStage(
            ops=(f"layers.{2 * at}", f"layers.{2 * at + 1}"),
            devices=tuple(range(4 * at, 4 * at + 4)),
            micro_batch=4,
            tensor=ranks,
        )
        for at, ranks in enumerate(tensor)
    )
    return plan_by_hand(problem(graph, 8, 8), HandPlan(stages=stages))


def test_megatron_gets_its_sizes() -> None:
    lines = write_megatron(planned(2, 2)).text.splitlines()
    assert "    --tensor-model-parallel-size 2" in lines
    assert "    --micro-batch-size 2" in lines, "each of two replicas has two samples"
    assert lines[-1] == "# For 8 ranks: each pipeline rank has 4 of them, one after the other."


def test_torchtitan_gets_its_degrees() -> None:
    lines = write_torchtitan(planned(2, 2)).text.splitlines()
    assert {"tensor_parallel_degree = 2", "data_parallel_replicate_degree = 2", "local_batch_size = 4"} <= {*lines}
    assert not any("tensor" in line for line in write_torchtitan(planned(1, 1)).text.splitlines())


def test_layers_name_the_place_of_each_device() -> None:
    hosts = json.loads(write_layers(planned(2, 1)).text)["hosts"]
    names = "replica", "replicas", "rank", "ranks"
    places = [{name: host["stages"][0].get(name) for name in names} for host in hosts]
    assert places[3] == {"replica": 1, "replicas": 2, "rank": 1, "ranks": 2}
    assert places[7] == {"replica": 3, "replicas": 4, "rank": None, "ranks": None}


def test_unequal_degrees_are_refused_where_a_format_has_one() -> None:
    with pytest.raises(InvalidInput, match="s0 has tensor-parallel degree 2 and s1 has 4, and the format holds one"):
        write_megatron(planned(2, 4))


def test_torch_pipelining_refuses_shared_replicas() -> None:
    with pytest.raises(InvalidInput, match="2 devices share each replica, and torch's pipelines do not share out"):
        write_torch_pipelining(planned(2, 2))
