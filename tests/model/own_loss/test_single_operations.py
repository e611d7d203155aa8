"""`from_transformers` with `split="*"`: a plan recomputes single operations inside the layers of a model."""

from dataclasses import replace

import pytest
import torch

from graphpipe.cluster import Cluster
from graphpipe.costs import Recompute
from graphpipe.costs.analytic import estimate
from graphpipe.model.own_loss.from_transformers import TransformersModel, from_transformers
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.run import Pipeline, PipelineOptions

TOKENS = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS), "labels": TOKENS}
GELU = ("transformer.h.0.mlp.act.pow", "transformer.h.0.mlp.act.tanh", "transformer.h.0.mlp.act.mul")


def gpt2() -> TransformersModel:
    transformers = pytest.importorskip("transformers", reason="an optional extra: graphpipe-torch[transformers]")
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return from_transformers(transformers.GPT2LMHeadModel(config), BATCH, split="*")


def losses(recompute: Recompute) -> list[float]:
    model, cluster = gpt2(), Cluster.resolve("local:2")
    cuts = (("transformer.w*", "transformer.drop", "transformer.h.0*"), ("transformer.ln_f", "lm_head"))
    stages = [HandStage(ops=ops, devices=(at,), micro_batch=2) for at, ops in enumerate(cuts)]
    plan = hand_plan(model.graph, estimate(model.graph, cluster), cluster, batch_size=4, stages=stages)
    plan = replace(plan, stages=(replace(plan.stages[0], recompute=recompute), *plan.stages[1:]))
    options = PipelineOptions(captured=model.captured)
    with Pipeline(plan, model.module, model.loss_fn, lambda p: torch.optim.SGD(p, lr=0.1), options=options) as pipeline:
        return [pipeline.step(*model.batch(BATCH)) for _ in range(2)]


@pytest.mark.slow
def test_a_plan_recomputes_a_single_gelu_of_a_layer() -> None:
    # `*` kept the layers whole, because `from_transformers` made all of them opaque.
    assert losses(GELU) == losses("none")
