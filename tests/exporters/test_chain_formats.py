"""The formats for chains of stages: their texts, and what they refuse."""

import tomllib

import pytest
from named_stages import LLAMA, branched_graph, chain_graph, staged

from graphpipe.errors import InvalidInput
from graphpipe.exporters.megatron import layout, write_megatron
from graphpipe.exporters.registry import EXPORTERS
from graphpipe.exporters.torchtitan import write_torchtitan

TITAN = ("tok_embeddings", *(f"layers.{number}" for number in range(4)), "norm", "output")
CHAIN_FORMATS = ("torch-pipelining", "torchtitan", "megatron")


def test_torchtitan_gets_the_submodules_of_each_stage() -> None:
    plan = staged(chain_graph(TITAN), [(TITAN[:2], (0, 1)), (TITAN[2:4], (2, 3)), (TITAN[4:], (4, 5))])
    assert tomllib.loads(write_torchtitan(plan).text) == {
        "training": {"local_batch_size": 16, "global_batch_size": 32},
        "parallelism": {
            "pipeline_parallel_degree": 3,
            "data_parallel_replicate_degree": 2,
            "data_parallel_shard_degree": 1,
            "pipeline_parallel_schedule": "1F1B",
            "pipeline_parallel_microbatch_size": 2,
            "module_fqns_per_model_part": [
                ["tok_embeddings", "layers.0"],
                ["layers.1", "layers.2"],
                ["layers.3", "norm", "output"],
            ],
        },
    }


def test_megatron_gets_a_layout() -> None:
    stages = [(LLAMA[:2], (0,)), (LLAMA[2:4], (1,)), (LLAMA[4:6], (0,)), (LLAMA[6:], (1,))]
    plan = staged(chain_graph(tied="model.embed_tokens.weight"), stages, schedule="interleaved")
    exported = write_megatron(plan)
    assert exported.notes == ()
    assert exported.text == (
        "GRAPHPIPE_ARGS=(\n"
        "    --tensor-model-parallel-size 1\n"
        "    --pipeline-model-parallel-size 2\n"
        '    --pipeline-model-parallel-layout "Et|tt|tt|tL"\n'
        "    --num-layers 6\n"
        "    --micro-batch-size 4\n"
        "    --global-batch-size 32\n"
        ")\n"
        "# For 2 ranks: each pipeline rank has 1 of them, one after the other.\n"
    )


def test_the_documented_layout_without_its_mtp_layer() -> None:
    # docs.nvidia.com/megatron-core, Custom Pipeline Model Parallel Layout: "Et*3|(tt|)*29,m|L"
    layers = [f"layers.{number}" for number in range(61)]
    pairs = [layers[first : first + 2] for first in range(3, 61, 2)]
    found = layout([["embedding", *layers[:3]], *pairs, ["output"]], [f"s{n}" for n in range(31)])
    assert found == "Et*3|" + "tt|" * 29 + "L"


@pytest.mark.parametrize("name", CHAIN_FORMATS)
@pytest.mark.parametrize(
    ("stages", "micro_batches", "message"),
    [
        ([(LLAMA[:4], (0, 1)), (LLAMA[4:], (2,))], (4, 4), "s0 has data-parallel degree 2 and s1 has 1"),
        ([(LLAMA[:4], (0,)), (LLAMA[4:], (1,))], (4, 8), "s0 has micro-batch 4 and s1 has 8"),
        ([(LLAMA[:4], (0, 1)), (LLAMA[4:], (1, 2))], (4, 4), "s0 and s1 share some devices but not all"),
        ([(LLAMA[:2], (0,)), (LLAMA[2:4], (1,)), (LLAMA[4:], (0,))], (4, 4, 4), r"in the order \[0, 1, 0\]"),
    ],
)
def test_stages_that_are_not_alike_are_refused(
    name: str, stages: list[tuple[tuple[str, ...], tuple[int, ...]]], micro_batches: tuple[int, ...], message: str
) -> None:
    plan = staged(chain_graph(), stages, micro_batches=micro_batches)
    with pytest.raises(InvalidInput, match=message):
        EXPORTERS[name].write(plan)


@pytest.mark.parametrize("name", CHAIN_FORMATS)
def test_a_graph_of_stages_is_refused(name: str) -> None:
    graph = branched_graph(("a", "b", "join"), [("a", "join"), ("b", "join")])
    plan = staged(graph, [(("a",), (0,)), (("b",), (1,)), (("join",), (2,))])
    with pytest.raises(InvalidInput, match="edge s0 -> s2 skips a stage"):
        EXPORTERS[name].write(plan)


def test_a_cut_inside_a_forward_is_refused() -> None:
    names = ("embedding", "layers.0.attention", "layers.0.mlp", "add_1", "output")
    graph = chain_graph(names)
    plan = staged(graph, [(names[:2], (0,)), (names[2:], (1,))])
    for name in ("torchtitan", "megatron"):
        with pytest.raises(InvalidInput, match=r"edge s0 -> s1 cuts inside the forward of 'layers\.0'"):
            EXPORTERS[name].write(plan)
    assert "SPLIT_BEFORE = ['layers.0.mlp']" in EXPORTERS["torch-pipelining"].write(plan).text
    plan = staged(graph, [(names[:3], (0,)), (names[3:], (1,))])
    with pytest.raises(InvalidInput, match="edge s0 -> s1 cuts inside a forward: 'add_1'"):
        EXPORTERS["torch-pipelining"].write(plan)


def test_shared_parameters_are_refused_where_their_gradients_would_not_be_summed() -> None:
    plan = staged(chain_graph(tied="model.embed_tokens.weight"), [(LLAMA[:4], (0,)), (LLAMA[4:], (1,))])
    for name in ("torch-pipelining", "torchtitan"):
        with pytest.raises(InvalidInput, match=r"stages s0 and s1 share 'model\.embed_tokens\.weight'"):
            EXPORTERS[name].write(plan)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([["a.0"], ["b.0"]], r"2 lists of layers \(a, b\)"),
        ([["a"], ["b"]], r"0 lists of layers \(none\)"),
        ([["a.0", "norm", "a.1"]], "'norm' lies between the layers"),
        ([["token"], ["position", "a.0"]], "stages s0 and s1 share the embedding"),
    ],
)
def test_what_a_layout_cannot_say(parts: list[list[str]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        layout(parts, ["s0", "s1"])


def test_another_schedule_is_noted() -> None:
    plan = staged(chain_graph(TITAN), [(TITAN[:3], (0,)), (TITAN[3:], (1,))], schedule="zb-h1")
    (note,) = write_torchtitan(plan).notes
    assert note.startswith("The plan follows zb-h1, which the other tool does not have, so 1f1b was written.")
