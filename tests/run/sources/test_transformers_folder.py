"""A model of Hugging Face without data trains from a folder of weights, and is written for `from_pretrained`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_plans import cluster_of

import graphpipe as gp
from graphpipe.run.export.save_model import save_model

transformers = pytest.importorskip("transformers")
IDS = torch.randint(64, (8, 10), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": IDS, "labels": IDS}


@pytest.fixture(scope="module")
def config() -> Any:
    """Return the configuration of a small model with rotary positions and tied weights."""
    return transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )


def on_meta(config: Any) -> Any:
    """Return the model without data."""
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def train(model: Any, weights: Any, count: int, output: Path | None = None) -> list[float]:
    """Train two steps in some stages; return the losses."""
    held = gp.from_transformers(model, BATCH)
    cluster, names = cluster_of(count), list(held.graph.order)
    cuts = [round(number * len(names) / count) for number in range(count + 1)]
    stages = [
        gp.HandStage(ops=tuple(names[cuts[at] : cuts[at + 1]]), devices=(at,), micro_batch=4) for at in range(count)
    ]
    plan = gp.hand_plan(held.graph, gp.estimate(held.graph, cluster), cluster, batch_size=8, stages=stages)
    options = gp.PipelineOptions(captured=held.captured, initial_weights=weights)
    with gp.Pipeline(
        plan, held.module, held.loss_fn, lambda each: torch.optim.SGD(each, lr=0.1), options=options
    ) as pipeline:
        losses = [pipeline.step(*held.batch(BATCH)) for _ in range(2)]
        if output is not None:
            save_model(pipeline, output / "model.safetensors", output / "large", shard_bytes=20_000)
        pipeline.sync_model()
    return losses


def test_a_folder_with_an_index_trains_as_the_model_itself(config: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    real = transformers.AutoModelForCausalLM.from_config(config)
    real.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    assert len([*(tmp_path / "in").glob("*.safetensors")]) > 2
    expected = train(real, None, 2)
    assert train(on_meta(config), gp.Weights.read(tmp_path / "in"), 3, tmp_path) == pytest.approx(expected, rel=1e-6)
    assert len([*(tmp_path / "large").glob("*.safetensors")]) > 2
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "large")
    assert loaded.state_dict().keys() == real.state_dict().keys()
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, real.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.slow
def test_the_models_own_code_makes_new_weights_and_its_tables(config: Any) -> None:
    losses = train(on_meta(config), gp.Weights.init(), 2)
    assert losses == pytest.approx(train(on_meta(config), None, 3), rel=1e-6)
    assert losses[0] == pytest.approx(torch.tensor(64.0).log().item(), rel=0.05)
