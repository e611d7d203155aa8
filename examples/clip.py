"""Trains a CLIP of Hugging Face as a graph pipeline: parallel towers and a contrastive loss over the whole mini-batch.

    torchrun --nproc-per-node 4 examples/clip.py

Without torchrun, one process computes all four devices. Nothing is downloaded: the weights are random, and a pair is a
noisy pattern with a text that repeats the pattern's number.
"""

import os

import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.modeling_clip import image_text_contrastive_loss

import graphpipe as gp

BATCH, STEPS, PATTERNS, LENGTH = 32, 40, 32, 8
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}


def model() -> CLIPModel:
    """Return a small CLIP with random weights."""
    text = {**TOWER, "vocab_size": PATTERNS + 1, "max_position_embeddings": LENGTH, "eos_token_id": PATTERNS}
    vision = {**TOWER, "image_size": 16, "patch_size": 8}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=32))


def batch(seed: int) -> dict[str, Tensor]:
    """Return pictures and their texts, with each pattern once, in random order."""
    patterns = torch.randn(PATTERNS, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randperm(PATTERNS, generator=generator)[:BATCH]
    pictures = patterns[numbers]
    noise = 0.3 * torch.randn(pictures.shape, generator=generator)
    text = numbers.view(-1, 1).repeat(1, LENGTH)
    text[:, -1] = PATTERNS  # the end of the text
    return {"input_ids": text, "attention_mask": torch.ones_like(text), "pixel_values": pictures + noise}


def loss_fn(output: dict[str, Tensor], targets: None) -> Tensor:
    """Compare every picture with every text of the mini-batch, as CLIP's own loss does."""
    return image_text_contrastive_loss(output["logits_per_text"])


def main() -> None:
    torch.manual_seed(0)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 4))
    clip = gp.from_transformers(model(), batch(0), outputs=["logits_per_text"])
    cluster = gp.Cluster.preset(f"local:{ranks}")
    plan = gp.plan(clip.graph, gp.estimate(clip.graph, cluster), cluster, batch_size=BATCH)
    if rank == 0:
        for stage in plan.stages:
            print(f"{stage.name} on {stage.devices}: {stage.ops[0]} to {stage.ops[-1]}, {stage.micro_batch} at once")
    options = gp.PipelineOptions(captured=clip.captured)
    with gp.Pipeline(plan, clip.module, loss_fn, lambda p: torch.optim.AdamW(p, lr=1e-3), options=options) as pipeline:
        for step in range(1, STEPS + 1):
            loss = pipeline.step(*clip.batch(batch(step)))
            if rank == 0 and step % 10 == 0:
                print(f"step {step}: loss {loss:.3f}")
        _, output = pipeline.evaluate(*clip.batch(batch(0)))
    if rank == 0:
        found = output["logits_per_text"].argmax(1) == torch.arange(BATCH)
        print(f"texts that find their picture: {found.float().mean():.0%}")


if __name__ == "__main__":
    main()
