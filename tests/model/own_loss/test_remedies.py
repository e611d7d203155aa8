"""What an error or docs/models.md advises for a model of Hugging Face that is refused works."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="an optional extra: pip install graphpipe-torch[transformers]")

from bench.families.build import build_family
from bench.families.gradients import cut_everywhere, mean_square
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture, capture_again
from graphpipe.model.own_loss.from_transformers import from_transformers
from graphpipe.run import Pipeline

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
from qwen2_vl_text import Text, embedded


def test_a_frozen_vision_tower_of_qwen2_vl_trains_the_text_as_in_plain_pytorch() -> None:
    torch.manual_seed(0)
    model: Any
    model, batch = build_family("qwen2_vl")
    model.requires_grad_(False).double()
    for trained in (model.model.language_model.layers, model.lm_head):
        trained.requires_grad_(True)
    del batch["labels"]
    batch |= {"pixel_values": batch["pixel_values"].double()}
    expected = mean_square(model(**batch).logits, None)
    expected.backward()
    wanted = {id(each): each.grad.clone() for each in model.parameters() if each.grad is not None}
    text, inputs = Text(model), embedded(model, batch)
    graph = capture(text, inputs)
    assert len(graph.ops) > len(model.model.language_model.layers)
    with Pipeline(cut_everywhere(graph, 4, 2), text, mean_square) as pipeline:
        assert pipeline.step(inputs, None) == pytest.approx(expected.item())
        found = {name: each for name, each in pipeline.gradients().items() if each is not None}
    assert len(found) == len(wanted) > 30
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[id(text.get_parameter(name))], rtol=1e-5, atol=1e-12, msg=name)


@pytest.mark.slow
def test_a_mini_batch_with_images_of_different_sizes_is_refused_before_it_is_divided() -> None:
    """Its micro-batches would take the patches of other samples. Another size for all images is captured again."""
    model, batch = build_family("qwen2_vl")
    held = from_transformers(model, batch)
    batch["image_grid_thw"] = torch.tensor([[1, 4, 4], [1, 4, 4], [1, 2, 4], [1, 6, 4]])
    with pytest.raises(InvalidInput, match=r"sample 0 has 16 patches, sample 2 has 8.*make mini-batches of samples"):
        held.batch(batch)
    batch["image_grid_thw"] = torch.tensor([[1, 4, 4]] * 4)
    batch["input_ids"][0, 2] = 3
    with pytest.raises(InvalidInput, match=r"sample 0 has 3 placeholders \(image_token_id 60\), sample 1 has 4"):
        held.batch(batch)


@pytest.mark.slow
def test_a_router_inside_a_block_that_is_whole_by_default_is_captured_without_from_transformers() -> None:
    # Nothing was recorded inside the block: "IndexError: tuple index out of range".
    torch.manual_seed(0)
    model, batch = build_family("gpt_oss", output_router_logits=True, num_hidden_layers=1)
    del batch["labels"]
    with pytest.raises(
        InvalidInput, match=r"'model.layers.0.mlp' stays whole.*router_logits.*output_router_logits=False"
    ):
        capture(model, batch, opaque=["model.layers.0.mlp"])
    graph = capture(model, batch, whole_batch=["output"])
    assert {"model.layers.0.mlp.experts", "output"} <= {op.name for op in graph.ops}

    def loss_fn(output: Any, targets: object) -> torch.Tensor:
        return output["aux_loss"] + mean_square(output["logits"], targets)

    model.zero_grad()
    expected = loss_fn(model(**batch), None)
    expected.backward()
    wanted = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    assert any("router" in name for name in wanted)
    with Pipeline(cut_everywhere(graph, 4, 2), model, loss_fn) as pipeline:
        assert pipeline.step(batch, None) == pytest.approx(expected.item(), rel=1e-5)
        found = {name: each for name, each in pipeline.gradients().items() if each is not None}
    largest = max(each.abs().max().item() for each in wanted.values())
    for name, gradient in wanted.items():
        scale = max(gradient.abs().max().item(), 1e-3 * largest)
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-5 * scale, msg=name)


def test_a_model_that_only_shifts_labels_in_its_forward_gets_decoder_inputs() -> None:
    # It was refused: without labels its decoder had no inputs.
    model: Any
    model, batch = build_family("m2m_100", encoder_layers=1, decoder_layers=1)
    held = from_transformers(model, batch)
    assert held.inputs == ("input_ids", "attention_mask", "decoder_input_ids")
    inputs, _ = held.batch(batch)
    assert torch.equal(inputs["decoder_input_ids"][:, 1:], batch["labels"][:, :-1])
    assert inputs["decoder_input_ids"][:, 0].tolist() == [model.config.decoder_start_token_id] * len(batch["labels"])


@pytest.mark.parametrize("name", ["bloom", pytest.param("mbart", marks=pytest.mark.slow)])
def test_a_rank_captures_without_labels_what_was_traced_with_them(name: str) -> None:
    # Values that nothing reads decide what is grouped, so they stay when the loss is cut off.
    model, example = build_family(name)
    graph = from_transformers(model, example).graph
    assert graph.origin is not None
    assert capture_again(model, graph.inputs, graph.origin, compare_modes=False).graph == graph


@pytest.mark.slow
def test_mini_batches_of_other_lengths_have_the_models_own_loss() -> None:
    """Llama was refused: "it no longer has 'to_dtype'", the conversion of its scores, which only its loss does."""
    model, batch = build_family("llama")
    held = from_transformers(model, batch)
    words = torch.randint(3, 20, (len(batch["input_ids"]), 11), generator=torch.Generator().manual_seed(0))
    longer = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}
    with Pipeline(cut_everywhere(held.graph, len(words), 2), model, held.loss_fn) as pipeline:
        for each in (batch, longer):
            assert pipeline.step(*held.batch(each)) == pytest.approx(model(**each).loss.item())
