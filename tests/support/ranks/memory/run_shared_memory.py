"""Language models whose replicas ranks share: the peak of torch's allocations on each rank during a step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.running.engines import adamw
from bench.running.predicted.prediction_rank import peak_bytes
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions

BATCH, LENGTH, WORDS = 32, 32, 256
CHECKED, MEASURED = 2, 5
"""Steps before those that are measured, and these. In the first, the second and the fourth, the loss function is
checked. Gloo sometimes keeps the buffer of an exchange for longer, so the least peak counts."""


def model_of(name: str) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    """Return a model, inputs and targets: gpt-small, or a Llama with grouped queries and tied embeddings."""
    torch.manual_seed(0)
    if name == "gpt":
        zoo = zoo_model("gpt-small")
        inputs, targets = zoo.batch(_drawn(), BATCH)
        return zoo.module, inputs, targets
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=_drawn())
    return LlamaForCausalLM(config), {"input_ids": tokens[:, :-1]}, tokens[:, 1:]


def loss_fn(output: Any, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next tokens."""
    logits = output if isinstance(output, Tensor) else output["logits"]
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def peaks_of_shared(folder: str, names: Sequence[str]) -> list[float]:
    """Return the least peak bytes of some steps of each plan, after those that create the optimizer state.

    Args:
        folder: of plans and captures.
        names: of the plans, which begin with the model's.
    """
    torch.set_num_threads(1)
    found: list[float] = []
    for name in names:
        model = name.split()[0]
        plan = Plan.load(Path(folder) / f"{name}.json")
        options = PipelineOptions(captured=load_capture(Path(folder) / model, plan.graph), rollback=False)
        module, inputs, targets = model_of(model)
        with Pipeline(plan, module, loss_fn, adamw, options=options) as pipeline:
            for _ in range(CHECKED):
                pipeline.step(inputs, targets)
            file = Path(folder) / f"{name} {pipeline.world.rank}.json"
            found.append(min(peak_bytes(pipeline, inputs, targets, file) for _ in range(MEASURED)))
    return found


def _drawn() -> torch.Generator:
    return torch.Generator().manual_seed(0)
