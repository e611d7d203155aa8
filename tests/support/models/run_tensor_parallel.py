"""Trainings in which several ranks share each replica of a stage: importable functions of plain values."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.model.shards.with_shards import with_shards
from graphpipe.model.zoo.gpt import Gpt, GptShape
from graphpipe.run.checkpoint.checkpoints import Checkpoints

SAMPLES, LENGTH, VOCABULARY = 4, 6, 24
Cut = Sequence[tuple[Sequence[str], Sequence[int], int, int]]
"""For each stage: patterns of operators, devices, how many of them share a replica, and the micro-batch."""


def gpt() -> nn.Module:
    """Return the language model of the zoo, very small: packed queries, keys and values, and a head of its own."""
    torch.manual_seed(0)
    return Gpt(GptShape(layers=2, sequence=LENGTH, hidden=8, heads=4, feed_forward=16, vocabulary=VOCABULARY))


def llama() -> nn.Module:
    """Return a tiny Llama: grouped queries, a gated feed-forward, and one weight for the embedding and the head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


MODELS: dict[str, Callable[[], nn.Module]] = {"gpt": gpt, "llama": llama}


def batch(step: int = 0) -> tuple[Tensor, Tensor]:
    """Return tokens (samples, length) and the next tokens."""
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=draw)
    return tokens[:, :-1], tokens[:, 1:]


def loss_fn(output: Any, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next tokens."""
    logits = output if isinstance(output, Tensor) else output["logits"]
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer with a state."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def build(name: str, cut: Cut, **options: Any) -> tuple[gp.Pipeline, nn.Module]:
    """Return a pipeline of a model in double precision, and the model."""
    model = MODELS[name]().double()
    plan = plan_of(model, name, cut)
    given = gp.PipelineOptions(timeout_seconds=20, **options)
    return gp.Pipeline(plan, model, loss_fn, sgd, options=given), model


def plan_of(model: nn.Module, name: str, cut: Cut) -> gp.Plan:
    """Return a plan of a model with some stages."""
    inputs: Any = batch()[0] if name == "gpt" else {"input_ids": batch()[0]}
    graph = with_shards(gp.capture(model, inputs), model)
    cluster = gp.Cluster.preset(f"local:{1 + max(device for _, devices, _, _ in cut for device in devices)}")
    stages = [
        gp.HandStage(ops=tuple(ops), devices=tuple(on), micro_batch=size, tensor=degree)
        for ops, on, degree, size in cut
    ]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=SAMPLES, stages=stages)


def train(name: str, cut: Cut, steps: int = 2, folder: str = "", resume: str = "", **options: Any) -> dict[str, Any]:
    """Train some steps; return losses, norms, the last gradients, the sizes of what is held, and all weights."""
    pipeline, model = build(name, cut, **options)
    with pipeline:
        found: dict[str, Any] = {"losses": [], "norms": []}
        if resume:
            Checkpoints(pipeline, resume).load()
        for step in range(pipeline.steps, pipeline.steps + steps):
            inputs, targets = batch(step)
            found["losses"].append(pipeline.step(inputs if name == "gpt" else {"input_ids": inputs}, targets))
            found["norms"].append(pipeline.gradient_norms[0])
        found["gradients"] = pipeline.gradients()
        found["held"] = sum(each.numel() for each in pipeline.gradients().values() if each is not None)
        if folder:
            with Checkpoints(pipeline, folder) as checkpoints:
                checkpoints.save()
        inputs, targets = batch(7)
        found["evaluated"] = pipeline.evaluate(inputs if name == "gpt" else {"input_ids": inputs}, targets)[0]
        pipeline.sync_model()
        found["state"] = {key: value.clone() for key, value in model.state_dict().items()}
    return found


def train_all(cases: Sequence[tuple[str, Cut]]) -> list[dict[str, Any]]:
    """Train each of the cases."""
    return [train(name, cut) for name, cut in cases]


def train_plainly(name: str, steps: int = 2) -> dict[str, Any]:
    """Train without a pipeline."""
    model = MODELS[name]().double()
    optimizer = sgd(model.parameters())
    found: dict[str, Any] = {"losses": [], "norms": []}
    for step in range(steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        found["losses"].append(float(loss.detach()))
        found["norms"].append(float(nn.utils.get_total_norm([each.grad for each in model.parameters()])))
        optimizer.step()
    found["gradients"] = {key: each.grad for key, each in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        inputs, targets = batch(7)
        found["evaluated"] = float(loss_fn(model(inputs), targets))
    found["state"] = dict(model.state_dict())
    return found
