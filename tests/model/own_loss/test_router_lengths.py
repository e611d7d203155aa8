"""Router losses at other text lengths: conversions of types were matched by their numbers, which labels shift."""

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="an optional extra: pip install graphpipe-torch[transformers]")

import transformers

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.model.own_loss.from_transformers import from_transformers
from graphpipe.planning.plan import plan
from graphpipe.run import Pipeline, PipelineOptions

models: Any = transformers
OWN = {
    "Qwen3Moe": {"head_dim": 4, "num_experts": 4, "moe_intermediate_size": 8},
    "Mixtral": {"num_local_experts": 4},
    "Olmoe": {"num_experts": 4},
}


def batch(length: int) -> dict[str, torch.Tensor]:
    words = torch.randint(1, 64, (4, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN)
def test_router_losses_take_texts_of_other_lengths(kind: str) -> None:
    torch.manual_seed(0)
    config = getattr(models, f"{kind}Config")(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_experts_per_tok=2, output_router_logits=True, **OWN[kind],
    )  # fmt: skip
    model = getattr(models, f"{kind}ForCausalLM")(config)
    held, cluster = from_transformers(model, batch(11)), Cluster.preset("local:2")
    made = plan(held.graph, estimate(held.graph, cluster), cluster, batch_size=4, micro_batch=2)
    assert len(made.stages) > 1
    with Pipeline(made, model, held.loss_fn, options=PipelineOptions(captured=held.captured)) as pipeline:
        for length in (11, 14, 7):
            expected = model(**batch(length), use_cache=False).loss.item()
            assert pipeline.step(*held.batch(batch(length))) == pytest.approx(expected, rel=1e-5)
