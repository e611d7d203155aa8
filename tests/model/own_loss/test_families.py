"""Families of Hugging Face come apart layer by layer.

Rotary angles, shared masks, T5's position bias and BART's dropout between layers once joined all layers to one
operator.
"""

import pytest

pytest.importorskip("transformers", reason="an optional extra: pip install graphpipe-torch[transformers]")

from families import FAMILIES
from transformers.modeling_layers import GradientCheckpointingLayer

from graphpipe.model.own_loss.from_transformers import from_transformers


@pytest.mark.parametrize("name", FAMILIES)
def test_every_layer_is_an_operator_of_its_own(name: str) -> None:
    model, example = FAMILIES[name]()
    layers = [path for path, part in model.named_modules() if isinstance(part, GradientCheckpointingLayer)]
    assert layers
    held = from_transformers(model, example)
    assert set(layers) <= {op.name for op in held.graph.ops}
    assert held.loss is not None
