"""Families of Hugging Face come apart layer by layer, and train as in plain PyTorch.

Rotary angles, shared masks, T5's position bias and BART's dropout between layers once joined all layers to one
operator.
"""

import pytest

pytest.importorskip("transformers", reason="an optional extra: pip install graphpipe-torch[transformers]")

from bench.families import OWN, PAGE, layers_of, line, measure, most_layers, saved
from bench.model_families import FAMILIES
from graphpipe.model.capture.capture import capture

CORE = (
    *("mixtral", "mixtral, router losses", "qwen3", "gemma2", "gpt_neox", "falcon", "olmo2"),
    *("modernbert", "t5", "dinov2", "swin", "wav2vec2", "vision-encoder-decoder", "llava"),
)
"""Some of each kind. `make bench-families` tries all."""
EXACT = 1e-5


@pytest.mark.parametrize("name", CORE)
def test_every_layer_is_an_operator_of_its_own(name: str) -> None:
    found = measure(name)
    (expected,) = (row for row in saved() if row["family"] == name)
    measured = {"seconds": 0, "away": 0}
    assert found | measured == expected | measured
    assert found["away"] < EXACT
    assert found["most"] == 1
    assert found["operators"] >= found["layers"]
    assert found["loss"] == OWN


@pytest.mark.parametrize("name", ["gemma2", "mixtral", "roberta", "whisper", "segformer", "clip", "llava"])
def test_an_ordinary_capture_cuts_between_all_layers_too(name: str) -> None:
    model, example = FAMILIES[name]()
    graph = capture(model, {key: each for key, each in example.items() if key != "labels"})
    (expected,) = (row for row in saved() if row["family"] == name)
    assert most_layers(graph, layers_of(model)) == 1
    assert len(graph.ops) >= expected["operators"]  # it also cuts inside layers


def test_the_page_shows_what_was_measured() -> None:
    rows = saved()
    assert [row["family"] for row in rows] == list(FAMILIES)
    page = PAGE.read_text()
    for row in rows:
        assert line(row) in page
        assert row.get("away", 0) < EXACT
