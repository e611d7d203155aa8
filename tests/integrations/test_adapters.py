"""Models with adapters, prompts or checkpointed activations: gradients of a pipeline are those of plain PyTorch."""

import copy

import pytest
import torch

pytest.importorskip("peft", reason="adapters are tested with peft: pip install peft")

from adapted_models import ADAPTED
from run_trainers import Samples, two_stages

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.model.own_loss.from_transformers import from_transformers
from graphpipe.run import Pipeline, PipelineOptions


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "lora" else pytest.mark.slow) for name in ADAPTED]
)
def test_gradients_are_those_of_plain_pytorch(name: str) -> None:
    model, samples = ADAPTED[name](), Samples(8)
    batch = {key: column.clone() for key, column in samples.columns.items()}
    plain = copy.deepcopy(model)
    plain.train()
    loss = plain(**batch).loss
    loss.backward()
    expected = {key: each.grad for key, each in plain.named_parameters()}
    assert any(gradient is not None for gradient in expected.values())
    traced = from_transformers(model, batch)
    cluster = Cluster.preset("local:2")
    plan = two_stages(traced.graph, estimate(traced.graph, cluster), cluster, 8)
    options = PipelineOptions(captured=traced.captured, device="cpu")
    with Pipeline(plan, model, traced.loss_fn, None, options=options) as pipeline:
        assert pipeline.step(*traced.batch(batch)) == pytest.approx(loss.item(), rel=1e-6)
    for key, parameter in model.named_parameters():
        if expected[key] is None:
            assert parameter.grad is None, key  # frozen
        else:
            torch.testing.assert_close(parameter.grad, expected[key], rtol=1e-4, atol=1e-6, msg=key)
