"""Import of Aceso's profiles and plans: small folders by hand, hostile files, and the measured runs themselves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aceso_folder import PLAN, plan_body, profile, write_folder

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Graph
from graphpipe.importers.aceso_profile import MIB
from graphpipe.importers.read_aceso import read_aceso
from graphpipe.importers.write_plan_parts import write_plan_parts
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "mist-a10g"
GIB = 2.0**30


def imported(folder: Path, **changes: Any) -> Plan:
    return read_aceso(write_folder(folder, plan_body(**changes)), PLAN)


def test_operators_layers_and_stages(tmp_path: Path) -> None:
    plan = imported(tmp_path)
    assert [len(stage.ops) for stage in plan.stages] == [14, 15]
    assert plan.stages[0].ops[:2] == ("encoder-embedding", "layers.0.enc-1st-layernorm")
    assert plan.stages[1].ops[0] == "layers.1.enc-1st-layernorm"
    assert plan.stages[1].ops[-1] == "gpt-post-process"
    assert [(stage.devices, stage.micro_batch, stage.in_flight) for stage in plan.stages] == [
        ((0,), 1, 2),
        ((1,), 1, 1),
    ]
    assert (plan.batch_size, plan.schedule, plan.planner) == (8, "1f1b", "aceso")


@pytest.mark.parametrize("first", range(1, 29))
def test_what_a_stage_sends_is_the_output_size_of_its_last_operator(tmp_path: Path, first: int) -> None:
    plan = imported(tmp_path, first=first)
    size = profile().splitlines()[1 + (0 if first == 1 else (first - 2) % 13 + 1 if first < 28 else 14)].split(",")[4]
    assert [edge.bytes_per_sample for edge in plan.edges] == [float(size) * MIB]


def test_seconds_are_those_of_the_profile_and_the_adding_of_gradients(tmp_path: Path) -> None:
    plan = imported(tmp_path)
    seconds = plan.cost_model.task_seconds(plan.stages[0].ops, 0, 1)
    assert seconds.forward == pytest.approx(54e-6)  # embedding 5, four products of 10, nine others of 1
    # The dropout of scores reads 11 MB and keeps 12 in 1 us. Gradients of 46 MB are read twice and written once.
    assert seconds.backward == pytest.approx(103e-6 + 3 * 46 / 23 * 1e-6)
    twice = plan.cost_model.task_seconds(plan.stages[0].ops, 0, 2)
    assert twice.forward == pytest.approx(108e-6)


def test_recomputed_neighbours_are_a_region_that_ends_before_a_new_layer(tmp_path: Path) -> None:
    flags = [[0] * 3 + [1] * 3 + [0] * 6 + [1, 1], [1, 0, 1] + [0] * 12]
    plan = imported(tmp_path, recompute_ops=flags)
    assert [stage.recompute for stage in plan.stages] == [("region-1", "region-2"), ("region-3", "region-4")]
    assert [op for op in plan.stages[0].ops if op.startswith("region-1.")] == [
        "region-1.layers.0.enc-attention-score",
        "region-1.layers.0.enc-attention-softmax",
        "region-1.layers.0.enc-attention-dropout",
    ]
    again = plan.cost_model.task_seconds(plan.stages[0].ops, 0, 1, plan.stages[0].recompute).backward
    once = plan.cost_model.task_seconds(plan.stages[0].ops, 0, 1).backward
    assert again - once == pytest.approx((3 + 11) * 1e-6)
    over = plan_body(first=28, recompute_ops=[[1] * 28, [0]])
    found = read_aceso(write_folder(tmp_path / "over", over), PLAN)
    assert found.stages[0].recompute == ("region-1", "region-2", "region-3")  # embedding, and one for each layer
    off = plan_body(recompute_ops=flags, checkpoint_activations=[False, True])
    assert read_aceso(write_folder(tmp_path / "off", off), PLAN).stages[0].recompute == "none"


def test_outputs_that_no_backward_needs_are_freed(tmp_path: Path) -> None:
    plan = imported(tmp_path)
    saved = {op.kind: op.work.saved_bytes_per_sample / MIB for op in plan.graph.ops}
    assert saved["enc-attention-score"] == saved["enc-attention-dense"] == saved["enc-MLP-GEMM-2"] == 0
    assert (saved["enc-attention-softmax"], saved["enc-attention-dropout"]) == (8, 12)


def test_a_recomputed_dropout_keeps_the_residual_that_it_adds(tmp_path: Path) -> None:
    plan = imported(tmp_path, recompute_ops=[[0] * 13 + [1], [0] * 15])
    held = plan.cost_model.activation_bytes
    before = held.saved(plan.stages[0].ops) / MIB
    # Freed: 3 MB of the dropout. Kept: its inputs, 2 MB of the product (not saved before); the residual is held anyway.
    assert held.saved(plan.stages[0].ops, plan.stages[0].recompute) / MIB == before - 3 + 2 + 2
    # ... and 2 MB of its output, which the next stage reads.


def test_tensor_parallel_groups_are_devices_with_the_costs_of_their_variant(tmp_path: Path) -> None:
    degrees = [[2] * 14, [1] * 15]
    plan = imported(tmp_path, num_gpus=[2, 1], model_parallel_size_of_each_op=degrees)
    assert [device.name for device in plan.cluster.devices] == ["n0/tp2-0", "n0/tp1-0"]
    # Profiled on two GPUs: half of the seconds. An all-reduce of 2 MB takes 5 us by itself: 3 + (9 - 3) / 3.
    forward = plan.cost_model.task_seconds(plan.stages[0].ops, 0, 1).forward
    assert forward == pytest.approx((54 / 2 + 3 * 5) * 1e-6)  # in the embedding, the dense layer and the second product
    fast = read_aceso(tmp_path, PLAN, slow_links=())
    assert fast.cost_model.task_seconds(fast.stages[0].ops, 0, 1).forward == pytest.approx(27e-6)


def test_replicas_share_a_micro_batch(tmp_path: Path) -> None:
    degrees = [[2] * 14, [1] * 15]
    plan = imported(tmp_path, num_gpus=[2, 1], data_parallel_size_of_each_op=degrees, micro_batch_size=2)
    assert [stage.devices for stage in plan.stages] == [(0, 1), (2,)]
    assert [stage.micro_batch for stage in plan.stages] == [2, 2]
    assert plan.reduce_seconds(0) > 0


def test_first_and_last_stage_share_the_word_embedding(tmp_path: Path) -> None:
    plan = imported(tmp_path)
    ((tied),) = plan.tied_gradients
    assert (tied.stages, tied.bytes) == ((0, 1), 4 * MIB)


def test_the_cluster_has_the_measured_links_and_waits_for_messages(tmp_path: Path) -> None:
    plan = imported(tmp_path)
    cluster = plan.cluster
    assert (cluster.overlap, cluster.duplex) == (False, True)
    assert cluster.intra_node.seconds(GIB) == pytest.approx(1.0)
    assert [device.node for device in read_aceso(tmp_path, PLAN, node_gpus=1).cluster.devices] == ["n0", "n1"]


def test_memory_is_what_the_plan_needs_unless_it_is_given(tmp_path: Path) -> None:
    plan = imported(tmp_path)
    most = max(needed_bytes(plan).values())
    assert plan.cluster.type_of(0).memory_bytes == most
    assert read_aceso(tmp_path, PLAN, memory_bytes=2 * most).cluster.type_of(0).memory_bytes == 2 * most
    with pytest.raises(Infeasible, match="stage"):
        read_aceso(tmp_path, PLAN, memory_bytes=most / 2)


def test_the_parts_are_files_that_other_commands_read(tmp_path: Path) -> None:
    plan = imported(tmp_path / "in")
    graph, costs, cluster, whole = write_plan_parts(plan, tmp_path / "out")
    assert Graph.load(graph) == plan.graph
    assert CostTable.load(costs) == plan.costs
    assert Cluster.load(cluster) == plan.cluster
    assert Plan.load(whole) == plan


def change_plan(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / "plans" / f"{PLAN}.json").write_text(json.dumps(plan_body(**changes)))


def change_text(name: str, before: str, after: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = next(folder.rglob(name))
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after, 1))

    return change


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: [path.unlink() for path in [*folder.rglob(name)]]


OPS, LINK, SUM = "gpt_tiny_mbs1_tp1_algo0.csv", "p2p_*_node.csv", "prim_*.csv"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (remove("*.json"), r"has no plan \(NAME.json\)"),
        (remove("gpt_*.csv"), r"has no profile \(MODEL_mbsB"),
        (remove(LINK), r"has neither p2p_intra_node.csv nor p2p_inter"),
        (
            lambda folder: (folder / "copy").mkdir() or (folder / "copy" / OPS).write_text(""),
            "has a file 'gpt_tiny_mbs1",
        ),
        (change_text(OPS, "output_size", "output"), "line 1: has 0 columns 'output_size', must be 1"),
        (
            change_text(OPS, "enc-1st-layernorm,1.0", "enc-1st-layernorm,-1"),
            "line 3, forward-compute: is -1.0, must be",
        ),
        (
            change_text(OPS, "enc-1st-layernorm,1.0", "enc-1st-layernorm,nan"),
            "line 3, forward-compute: is nan, must be",
        ),
        (
            change_text(OPS, "enc-1st-layernorm,1.0", "enc-1st-layernorm,x"),
            "line 3, forward-compute: 'x' is not a number",
        ),
        (change_text(OPS, "enc-1st-layernorm,1.0", "enc-1st-layernorm"), "line 3: has 8 values for 9 columns"),
        (
            change_text(OPS, "enc-MLP-gelu", "enc-2nd-layernorm"),
            "line 13: operator 'enc-2nd-layernorm' is listed twice",
        ),
        (
            change_text(OPS, "enc-MLP-gelu", "enc-MLP-relu"),
            "mbs2_tp1_algo0.csv: lists other operators than gpt_tiny_mbs1",
        ),
        (lambda folder: next(folder.rglob(OPS)).write_text(""), "the file is empty"),
        (lambda folder: next(folder.rglob(OPS)).write_bytes(b"\xff\xfe\x00"), "not a text file"),
        (lambda folder: next(folder.rglob(OPS)).write_text('a,"' + "x" * 200_000), "not a CSV file"),
        (change_text("p2p_intra_node.csv", "1.0,1.0,1.0", "1.0,1.0"), "line 2: has 2 bandwidths for 3 sizes"),
        (change_text("p2p_intra_node.csv", "1.0,1.0,1.0\n", ""), "has 1 lines, must be pairs"),
        (change_text("p2p_intra_node.csv", "1.0,1.0,1.0", "1.0,0,1.0"), "line 2: is 0.0, must be finite and positive"),
        (change_plan(num_stages=3), "num_gpus: has 2 entries for 3 stages"),
        (change_plan(num_stages=0), "num_stages: is 0, must be from 1"),
        (change_plan(num_layers=3), "has 29 operators, but 16 profiled operators do not make them in 3 layers"),
        (change_plan(num_layers=1), "has 29 operators, but 16 profiled operators do not make them in 1 layers"),
        (change_plan(model_size="large"), "has no profile gpt_large_mbs"),
        (change_plan(num_gpus=[1, 2]), "stage 1: has 2 GPUs, but tensor- and data-parallel degrees 1 x 1"),
        (change_plan(num_gpus=[1, 10**8]), "num_gpus: sums to 100000001 GPUs, must be at most 65536"),
        (change_plan(recompute_ops=[[0] * 13, [0] * 15]), "recompute_ops, stage 0: has 13 entries for 14 operators"),
        (change_plan(micro_batch_size=3), "global_batch_size: 8 is not a multiple of micro_batch_size 3"),
        (change_plan(model_parallel_size_of_each_op=[[1] * 14, [1, 2] + [1] * 13]), "stage 1: lists the degrees 1, 2"),
        (change_plan(algo_of_each_op=[[1] * 14, [0] * 15]), "has no profile gpt_tiny_mbs.*_algo1.csv"),
        (change_plan(num_ops_in_each_stage="many"), "field num_ops_in_each_stage"),
        (change_text(f"{PLAN}.json", '"num_layers": 2', '"num_layers": 1e999'), "num_layers"),
        (change_text(f"{PLAN}.json", '"num_layers": 2,', ""), "num_layers"),
        (lambda folder: next(folder.rglob("*.json")).write_text("[1]"), "is not a plan of Aceso"),
        (
            lambda folder: next(folder.rglob("*.json")).write_text("[" * 100_000),
            "value that this program does not read",
        ),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path: Path, change: Callable[[Path], object], sentence: str) -> None:
    change(write_folder(tmp_path))
    with pytest.raises(InvalidInput, match=sentence) as raised:
        read_aceso(tmp_path, PLAN)
    assert str(tmp_path) in str(raised.value) or "GPUs)" in str(raised.value)


def test_a_folder_and_a_plan_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        read_aceso(tmp_path / "missing", PLAN)
    with pytest.raises(InvalidInput, match="Did you mean 'gpt_tiny_2stages'"):
        read_aceso(write_folder(tmp_path), "gpt_tiny_2stage")
    with pytest.raises(InvalidInput, match="is not a folder"):
        read_aceso(tmp_path / "plans" / f"{PLAN}.json", PLAN)


def test_a_published_run() -> None:
    if not DATA.exists():
        pytest.skip("the published profiles of A10G clusters are missing")
    plan = read_aceso(DATA, "gpt_13B_15stages_2024-3-22-19-41-43")
    assert (len(plan.graph.ops), len(plan.stages), len(plan.cluster.devices)) == (523, 15, 15)
    assert sorted(plan.cluster.types) == ["tp1", "tp2"]
    assert {device.node for device in plan.cluster.devices} == {"n0", "n1"}
