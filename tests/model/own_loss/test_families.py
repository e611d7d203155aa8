"""Families of Hugging Face come apart layer by layer, and train as in plain PyTorch.

Rotary angles, shared masks, T5's position bias and BART's dropout between layers once joined all layers to one
operator.
"""

import json

import pytest

pytest.importorskip("transformers", reason="an optional extra: pip install graphpipe-torch[transformers]")

from transformers import __version__
from transformers.models.auto import modeling_auto

from bench.families import rank_gradients
from bench.families.build import build_family
from bench.families.families import OWN, PAGE, layers_of, left_out, line, measure, most_layers, saved
from bench.families.ordinary_models import ORDINARY
from bench.families.table import FAMILIES, LEFT_OUT
from bench.record import RESULTS
from graphpipe.model.capture.capture import capture

TRIED = ("modernbert", "mixtral, router losses", "t5", "gemma2", "swin", "wav2vec2", "llava")
"""Families that tests try. `make bench-families` tries all."""
EXACT = 1e-5
MEASURED = pytest.mark.skipif(
    not __version__.startswith("5.23."), reason="the table of families is of transformers 5.23"
)
"""Other versions cut some families elsewhere, or build them from other configurations."""


@MEASURED
@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_every_layer_is_an_operator_of_its_own(name: str) -> None:
    found = measure(name)
    (expected,) = (row for row in saved() if row["family"] == name)
    measured = {"seconds": 0, "away": 0}
    assert found | measured == expected | measured
    assert found["away"] < EXACT
    assert found["most"] == 1
    assert found["operators"] >= found["layers"]
    assert found["loss"] == OWN


@MEASURED
@pytest.mark.parametrize(
    "name", ["clip", *(pytest.param(each, marks=pytest.mark.slow) for each in ("mixtral", "whisper"))]
)
def test_an_ordinary_capture_cuts_between_all_layers_too(name: str) -> None:
    model, example = build_family(name)
    graph = capture(model, {key: each for key, each in example.items() if key != "labels"})
    (expected,) = (row for row in saved() if row["family"] == name)
    assert most_layers(graph, layers_of(model)) == 1
    assert len(graph.ops) >= expected["operators"]  # it also cuts inside layers


def test_the_page_shows_what_was_measured() -> None:
    rows = saved()
    assert {row["family"] for row in rows} == FAMILIES.keys()
    page = PAGE.read_text()
    for row in rows:
        assert line(row) in page
        assert row.get("away", 0) < EXACT


def test_the_page_shows_what_was_measured_on_several_ranks() -> None:
    rows = json.loads((RESULTS / "rank_gradients.json").read_text())["rows"]
    assert [row["model"] for row in rows] == [*rank_gradients.NAMES, *ORDINARY]
    page = PAGE.read_text()
    for row in rows:
        assert rank_gradients.line(row) in page
        assert max(row["away_2"], row["away_4"]) < EXACT


def test_every_model_that_an_automatic_class_knows_is_in_the_table_or_left_out_for_a_reason() -> None:
    """About 250 names were in neither, and nothing noticed. Newer models of transformers may be in neither."""
    mappings = {key: each for key, each in vars(modeling_auto).items() if key.endswith("_MAPPING_NAMES")}
    assert len(mappings) >= 50
    known = {name for key, each in mappings.items() if key != "CONFIG_MAPPING_NAMES" for name in each}
    table = {name.partition(",")[0] for name in FAMILIES}
    named = [name for names in LEFT_OUT.values() for name in names]
    assert len(named) == len(set(named))
    assert not table & {*named}
    if __version__.startswith("5.23."):  # which the page names
        assert not known - table - {*named}
        assert not {*named} - known
    assert left_out() in PAGE.read_text()
