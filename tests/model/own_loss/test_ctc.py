"""CTC models with their labels: they check `labels.max()`, and torch's CTC does not run without data."""

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="an optional extra: pip install graphpipe-torch[transformers]")

import transformers

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.model.own_loss.from_transformers import from_transformers
from graphpipe.planning.plan import plan
from graphpipe.run import Pipeline, PipelineOptions

models: Any = transformers


def speech(kind: str, reduction: str) -> Any:
    """Return a small model without dropout."""
    config = getattr(models, f"{kind}Config")(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        conv_dim=(16, 16), conv_kernel=(4, 4), conv_stride=(2, 2), num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, feat_extract_norm="layer", hidden_dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
        apply_spec_augment=False, layerdrop=0.0, pad_token_id=0, ctc_loss_reduction=reduction,
    )  # fmt: skip
    torch.manual_seed(0)
    return getattr(models, f"{kind}ForCTC")(config).double()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reduction", "masked"),
    [
        ("Hubert", "mean", True),
        ("Hubert", "sum", False),
        ("Wav2Vec2", "sum", True),
    ],
)
def test_the_own_loss_of_a_ctc_model_is_exact_over_micro_batches(kind: str, reduction: str, masked: bool) -> None:
    model = speech(kind, reduction)
    labels = torch.randint(1, 20, (4, 6))
    labels[1, 3:] = labels[2, 5:] = -100
    batch = {"input_values": torch.randn(4, 128).double(), "labels": labels}
    if masked:
        batch["attention_mask"] = torch.ones(4, 128, dtype=torch.long)
        batch["attention_mask"][1, 100:] = 0
    held, cluster = from_transformers(model, batch), Cluster.preset("local:2")
    made = plan(held.graph, estimate(held.graph, cluster), cluster, batch_size=4, micro_batch=2)
    expected = model(**batch).loss
    expected.backward()
    wanted = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    with Pipeline(made, model, held.loss_fn, options=PipelineOptions(captured=held.captured)) as pipeline:
        assert pipeline.step(*held.batch(batch)) == pytest.approx(expected.item(), rel=1e-5)
        found = pipeline.gradients()
        for name, each in wanted.items():
            torch.testing.assert_close(found[name], each, rtol=1e-4, atol=1e-5, msg=name)
        labels[0, 0] = 25
        with pytest.raises(InvalidInput, match="Label values must be <= vocab_size: 20"):
            held.batch(batch)
