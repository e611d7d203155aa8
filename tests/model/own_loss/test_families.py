"""Families of Hugging Face come apart layer by layer, and train as in plain PyTorch.

Rotary angles, shared masks, T5's position bias and BART's dropout between layers once joined all layers to one
operator.
"""

import pytest

pytest.importorskip("transformers", reason="an optional extra: pip install graphpipe-torch[transformers]")

from bench.families import OWN, PAGE, line, measure, saved
from bench.model_families import FAMILIES

CORE = (
    *("mistral", "mixtral", "qwen3", "gemma2", "phi3", "gpt_neox", "falcon", "olmo2"),
    *("modernbert", "t5", "bart", "dinov2", "swin", "wav2vec2"),
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


def test_the_page_shows_what_was_measured() -> None:
    rows = saved()
    assert [row["family"] for row in rows] == list(FAMILIES)
    page = PAGE.read_text()
    for row in rows:
        assert line(row) in page
        assert row.get("away", 0) < EXACT
