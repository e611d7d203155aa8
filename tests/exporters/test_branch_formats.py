"""The formats for encoders that lead into a language model: their texts, and what they refuse."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from named_stages import branched_graph, staged

from graphpipe.errors import InvalidInput
from graphpipe.exporters.cornstarch import write_cornstarch
from graphpipe.exporters.megatron_mimo import write_megatron_mimo
from graphpipe.exporters.registry import EXPORTERS
from graphpipe.graph import Input

VISION = ("vision.patches", "vision.layers.0", "vision.layers.1")
AUDIO = ("audio.layers.0", "audio.layers.1")
LANGUAGE = ("decoder.layers.0", "decoder.layers.1", "head")
EDGES = [
    *zip(VISION, (*VISION[1:], LANGUAGE[0]), strict=True),
    *zip(AUDIO, (*AUDIO[1:], LANGUAGE[0]), strict=True),
    *pairwise(LANGUAGE),
]
GRAPH = branched_graph((*VISION, *AUDIO, *LANGUAGE), EDGES)
STAGES = [(VISION[:2], (0,)), (VISION[2:], (1,)), (AUDIO, (2,)), (LANGUAGE[:1], (3,)), (LANGUAGE[1:], (4,))]


def run(text: str, modules: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Run an exported module, whose imports find these names in these modules."""
    found: dict[str, Any] = {}
    for module, names in modules.items():
        assert f"from {module} import" in text
        found |= names
    body = text[text.rindex("import") :].split("\n\n", 1)[1]
    exec(compile(body, "exported", "exec"), found)
    return found


def test_mimo_gets_ranks_and_degrees() -> None:
    stages = [(VISION[:2], (0, 1)), (VISION[2:], (2, 3)), (AUDIO, (4, 5)), (LANGUAGE, (6,))]
    exported = write_megatron_mimo(staged(GRAPH, stages))
    kept = {"MegatronMIMOParallelismConfig": dict, "ModuleParallelismConfig": dict}
    found = run(exported.text, {"megatron.bridge.models.megatron_mimo.megatron_mimo_config": kept})
    one = {"tensor_model_parallel_size": 1}
    assert found["parallelism"]["module_parallelisms"] == {
        "vision": one | {"pipeline_model_parallel_size": 2, "data_parallel_size": 2, "rank_offset": 0},
        "audio.layers": one | {"pipeline_model_parallel_size": 1, "data_parallel_size": 2, "rank_offset": 4},
        "language": one | {"pipeline_model_parallel_size": 1, "data_parallel_size": 1, "rank_offset": 6},
    }
    assert exported.notes == (
        "MIMO gives each pipeline rank of 'vision' equally many layers; the plan's are listed beside it.",
    )
    assert "# s0 on node0/v100-0, node0/v100-1: vision.patches, vision.layers.0\n" in exported.text


def test_cornstarch_gets_a_template_for_each_branch() -> None:
    class Template(SimpleNamespace):
        @staticmethod
        def get_model_name(model: str) -> str:
            return f"name of {model}"

    text = write_cornstarch(staged(GRAPH, STAGES)).text
    modules = {
        "cornstarch.pipeline_template": {"PipelineTemplate": Template},
        "cornstarch.plugin.multimodal_parallel_plugin": {
            "ModalParallelPlugin": SimpleNamespace,
            "MultimodalParallelPlugin": SimpleNamespace,
        },
    }
    branches = ("vision", "audio.layers", "language")
    plugin = run(text, modules)["make_plugin"]({name: name for name in branches})
    templates = {
        name: each.pipeline_template
        for name, each in (*plugin.encoder_plugins.items(), ("language", plugin.language_model_plugin))
    }
    assert {name: each.modules_per_stage for name, each in templates.items()} == {
        "vision": [["patches", "layers.0"], ["layers.1"]],
        "audio.layers": [["0", "1"]],
        "language": [["decoder.layers.0"], ["decoder.layers.1", "head"]],
    }
    assert all(each.model_name == f"name of {name}" for name, each in templates.items())
    assert (plugin.microbatch_size, plugin.num_microbatches) == (4, 8)


@pytest.mark.parametrize("name", ["megatron-mimo", "cornstarch"])
@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([*STAGES[:2], (AUDIO, (1,)), *STAGES[3:]], "share node0/v100-1, and the format gives each ranks"),
        ([*STAGES[:3], (LANGUAGE[:1], (3, 4)), (LANGUAGE[1:], (5,))], "s3 has data-parallel degree 2 and s4 has 1"),
        ([((*VISION, *AUDIO, *LANGUAGE[:2]), (0,)), (LANGUAGE[2:], (1,))], "no stage where branches meet"),
        ([*STAGES[:3], (LANGUAGE[:1], (3, 4)), (LANGUAGE[1:], (5, 6))], "data-parallel degree"),
    ],
)
def test_what_these_formats_refuse(
    name: str, stages: list[tuple[tuple[str, ...], tuple[int, ...]]], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        EXPORTERS[name].write(staged(GRAPH, stages))


def test_branches_that_meet_twice_are_refused() -> None:
    graph = branched_graph(("a", "b", "c", "d", "e"), [("a", "c"), ("b", "c"), ("c", "e"), ("d", "e")])
    plan = staged(graph, [((name,), (device,)) for device, name in enumerate("abcde")])
    with pytest.raises(InvalidInput, match=r"branches meet at several stages \(s\d, s4\)"):
        write_megatron_mimo(plan)


def test_an_encoder_that_sends_elsewhere_too_is_refused() -> None:
    graph = branched_graph(("a", "b", "c", "d"), [("a", "c"), ("b", "c"), ("c", "d"), ("a", "d")])
    plan = staged(graph, [((name,), (device,)) for device, name in enumerate("abcd")])
    with pytest.raises(InvalidInput, match="branches meet at several stages"):
        write_megatron_mimo(plan)


def test_an_encoder_and_a_language_model_that_embeds_its_text_itself() -> None:
    names = ("vision.layers.0", "vision.layers.1", "decoder.embedding", "decoder.layers.0")
    edges = [(names[0], names[1]), (names[1], names[3]), (names[2], names[3])]
    graph = branched_graph(names, edges)
    embedding = replace(graph.ops[2], kind="Embedding", model_inputs=("tokens",))
    inputs = (Input(name="tokens", sample_shape=(4,), dtype="int64"),)
    graph = replace(graph, ops=(*graph.ops[:2], embedding, graph.ops[3]), inputs=inputs)
    plan = staged(graph, [(names[:1], (0,)), (names[1:2], (1,)), (names[2:], (2,))])
    text = write_megatron_mimo(plan).text
    assert '"vision.layers": ModuleParallelismConfig(' in text
    assert text.count("rank_offset=2") == 1
    plan = staged(graph, [((*names[:3],), (0,)), (names[3:], (1,))])
    with pytest.raises(InvalidInput, match="stage s0 embeds the text, and the format needs that in the language model"):
        write_megatron_mimo(plan)
