"""Tiny Hugging Face models, made from configurations, and their training with and without a pipeline."""

import copy
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.clip.modeling_clip import image_text_contrastive_loss

from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs.analytic import estimate
from graphpipe.graph import Graph, Origin
from graphpipe.model.capture.capture import Captured, capture_nodes
from graphpipe.model.capture_file.capture_file import load_capture, save_capture
from graphpipe.model.own_loss.from_transformers import TransformersModel, from_transformers
from graphpipe.model.own_loss.own_loss import OwnLoss
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.planning.plan import plan
from graphpipe.plans.plan import Plan
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.stage.tensor_tree import leaves

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
from declared_transformers import vilt as declare_vilt

BATCH, STEPS, WORDS, IMAGE = 8, 3, 50, 49
Batch = dict[str, Tensor]
LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64}
PICTURE: dict[str, Any] = {"image_size": 16, "patch_size": 8}
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def words(seed: int, length: int = 8) -> Batch:
    """Return texts, some of which are padded."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, -3:] = mask[6, -5:] = 0
    return {"input_ids": torch.randint(3, IMAGE, (BATCH, length), generator=generator), "attention_mask": mask}


def pictures(seed: int) -> Batch:
    """Return images."""
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(seed))}


def ignored(labels: Tensor) -> Tensor:
    """Return labels of which unequal numbers count. In two samples, which make a micro-batch, none count."""
    labels = labels.clone()
    labels[2, 2:] = labels[6] = labels[7] = -100
    return labels


def clip() -> tuple[nn.Module, Callable[[int], Batch]]:
    """CLIP: two towers and a whole-batch head."""
    towers: dict[str, Any] = {
        "text_config": {**LAYERS, "vocab_size": WORDS, "max_position_embeddings": 8, "eos_token_id": IMAGE},
        "vision_config": {**LAYERS, **PICTURE},
    }
    model = transformers.CLIPModel(transformers.CLIPConfig(**towers, projection_dim=16))
    return model, lambda seed: {**words(seed), **pictures(seed)}


def flava() -> tuple[nn.Module, Callable[[int], Batch]]:
    """FLAVA: two towers and a third over both."""
    config = transformers.FlavaConfig(
        text_config={**LAYERS, **NO_DROPOUT, "vocab_size": WORDS, "max_position_embeddings": 16},
        image_config={**LAYERS, **NO_DROPOUT, **PICTURE},
        multimodal_config={**LAYERS, **NO_DROPOUT},
        hidden_size=32,
        projection_dim=16,
    )
    model = transformers.FlavaModel(config)
    # They begin as zeros, whose layer norm (epsilon 1e-12) makes a gradient of a million times the rounding errors.
    image = model.image_model.embeddings
    for each in (model.multimodal_model.cls_token, image.cls_token, image.position_embeddings):
        nn.init.normal_(each)
    return model, lambda seed: {**words(seed), **pictures(seed)}


def t5() -> tuple[nn.Module, Callable[[int], Batch]]:
    """T5: one matrix embeds on both sides and scores the words."""
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0
    )
    config.decoder_start_token_id, config.tie_word_embeddings = 0, True
    model = transformers.T5ForConditionalGeneration(config)
    return model, lambda seed: {**words(seed), "labels": ignored(words(seed + 100, 6)["input_ids"])}


def bart(dropout: float = 0.0) -> tuple[nn.Module, Callable[[int], Batch]]:
    """BART: dropout between its layers follows its own mode, so that encoder and decoder stay whole."""
    sides: dict[str, Any] = {f"{side}_{what}": count for side in ("encoder", "decoder") for what, count in SIDE.items()}
    config = transformers.BartConfig(
        vocab_size=WORDS,
        d_model=32,
        max_position_embeddings=16,
        dropout=dropout,
        **sides,
    )
    model = transformers.BartForConditionalGeneration(config)
    return model, lambda seed: {**words(seed), "labels": ignored(words(seed + 100, 6)["input_ids"])}


SIDE = {"layers": 2, "attention_heads": 2, "ffn_dim": 64}


def gpt2(dropout: float = 0.0) -> tuple[nn.Module, Callable[[int], Batch]]:
    """GPT-2: embedding and head are tied."""
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = dropout
    model = transformers.GPT2LMHeadModel(config)
    return model, lambda seed: {**words(seed), "labels": ignored(words(seed)["input_ids"])}


def llama() -> tuple[nn.Module, Callable[[int], Batch]]:
    """Llama: rotary angles and a causal mask that all layers share, and fewer heads of keys than of queries."""
    config = transformers.LlamaConfig(**LAYERS, vocab_size=WORDS, num_key_value_heads=1, max_position_embeddings=16)
    model = transformers.LlamaForCausalLM(config)
    return model, lambda seed: {**words(seed), "labels": ignored(words(seed)["input_ids"])}


def mixtral() -> tuple[nn.Module, Callable[[int], Batch]]:
    """Mixtral with a load-balancing loss over the scores of all routers for the whole mini-batch."""
    experts: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 1}
    config = transformers.MixtralConfig(**LAYERS, **experts, vocab_size=WORDS, max_position_embeddings=16)
    config.output_router_logits, config.router_aux_loss_coef = True, 1.0
    model = transformers.MixtralForCausalLM(config)
    return model, lambda seed: {**words(seed), "labels": ignored(words(seed)["input_ids"])}


def vit() -> tuple[nn.Module, Callable[[int], Batch]]:
    """ViT with a classifier."""
    config = transformers.ViTConfig(**LAYERS, **PICTURE)
    config.num_labels = 5
    model = transformers.ViTForImageClassification(config)
    return model, lambda seed: {**pictures(seed), "labels": torch.arange(seed, seed + BATCH) % 5}


def llava() -> tuple[nn.Module, Callable[[int], Batch]]:
    """A Llama whose text contains the features of a vision tower."""
    config = transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **LAYERS, **PICTURE, "projection_dim": 16},
        text_config={"model_type": "llama", **LAYERS, "num_key_value_heads": 2, "vocab_size": WORDS},
        image_token_index=IMAGE,
        image_seq_length=4,
    )
    return transformers.LlavaForConditionalGeneration(config), llava_batch


def llava_batch(seed: int) -> Batch:
    """Four image tokens, then words."""
    text = words(seed)
    text["input_ids"] = torch.cat([torch.full((BATCH, 4), IMAGE), text["input_ids"]], 1)
    text["attention_mask"] = torch.cat([torch.ones(BATCH, 4, dtype=torch.long), text["attention_mask"]], 1)
    return {**text, **pictures(seed), "labels": ignored(text["input_ids"])}


def vilt() -> tuple[nn.Module, Callable[[int], Batch]]:
    """One transformer over words and patches."""
    config = transformers.ViltConfig(**LAYERS, **NO_DROPOUT, **PICTURE, vocab_size=WORDS, max_position_embeddings=16)
    config.num_labels = 5

    def batch(seed: int) -> Batch:
        answers = torch.rand(BATCH, 5, generator=torch.Generator().manual_seed(seed + 100))
        return {**words(seed), **pictures(seed), "labels": answers}

    return transformers.ViltForQuestionAnswering(config), batch


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What tracing a model gives. It takes seconds, and is the same for every copy of the model."""

    captured: Captured
    loss: OwnLoss | None

    @property
    def graph(self) -> Graph:
        return self.captured.graph


@dataclass(frozen=True, kw_only=True)
class Run:
    """A model in training, in a pipeline or without one."""

    model: nn.Module
    """As Hugging Face has it."""
    module: nn.Module
    """What the pipeline runs: the model, or a declared graph of its parts."""
    traced: Traced
    split: Callable[[int], tuple[Batch, Any]]
    """Inputs and targets of the mini-batch of a step."""
    loss_fn: Callable[[Any, Any], Tensor]
    plain_loss: Callable[[int], Tensor]
    """Of the model as it is, on the mini-batch of a step."""


MODELS = {
    "clip": clip,
    "flava": flava,
    "t5": t5,
    "bart": bart,
    "gpt2": gpt2,
    "llama": llama,
    "mixtral": mixtral,
    "vit": vit,
    "llava": llava,
    "vilt": vilt,
}
DECLARED = {"vilt": declare_vilt}


def run_of(name: str, traced: Traced | None = None, **options: Any) -> Run:
    """Return a model's run; the same one every time. The model is traced unless the result is given."""
    torch.manual_seed(0)
    model, batch = MODELS[name](**options)
    if name in DECLARED:
        return _declared(name, model, batch, traced)
    held = _held(model, traced) if traced else from_transformers(model, batch(0))
    loss_fn = {"clip": _contrast, "flava": _pool}.get(name, held.loss_fn)

    def plain_loss(step: int) -> Tensor:
        output = model(**batch(step))
        return output.loss if output.get("loss") is not None else loss_fn(output, None)

    return Run(
        model=model,
        module=held.module,
        traced=Traced(captured=held.captured, loss=held.loss),
        split=lambda step: held.batch(batch(step)),
        loss_fn=loss_fn,
        plain_loss=plain_loss,
    )


def _held(model: nn.Module, traced: Traced) -> TransformersModel:
    # What from_transformers returns.
    return TransformersModel(module=model, captured=traced.captured, loss=traced.loss)


def _contrast(output: Mapping[str, Tensor], targets: object) -> Tensor:
    del targets
    return image_text_contrastive_loss(output["logits_per_text"])


def _pool(output: Any, targets: object) -> Tensor:
    del targets
    parts = (output.multimodal_embeddings, output.text_embeddings, output.image_embeddings)
    return torch.stack([part.square().mean() for part in (*parts, output.multimodal_output.pooler_output)]).sum()


def _declared(name: str, model: Any, batch: Callable[[int], Batch], traced: Traced | None) -> Run:
    module = DECLARED[name](model)
    example = {key: each for key, each in batch(0).items() if key != "labels"}

    def split(step: int) -> tuple[Batch, Any]:
        given = batch(step)
        return given, given.pop("labels")

    def loss_fn(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(output, targets) * targets.shape[1]

    return Run(
        model=model,
        module=module,
        traced=traced or Traced(captured=capture_nodes(module, example, Origin(method="declared")), loss=None),
        split=split,
        loss_fn=loss_fn,
        plain_loss=lambda step: model(**batch(step)).loss,
    )


def plan_of(graph: Graph, devices: int) -> Plan:
    """Return the planner's plan for four devices, or two halves of unequal micro-batches for two.

    The devices are so slow that every one of them is worth its messages.
    """
    kind = DeviceType(
        name="slow",
        memory_bytes=1e9,
        peak_flops_per_second=1e6,
        memory_bytes_per_second=1e9,
        launch_seconds=0.0,
        half_peak_flops=0.0,
    )
    link = Link(latency_seconds=0.0, bandwidth_bytes_per_second=1e9)
    cluster = Cluster(
        name="slow",
        device_types=(kind,),
        devices=tuple(Device(name=f"d{number}", type="slow", node="here") for number in range(devices)),
        intra_node=link,
        inter_node=link,
    )
    costs = estimate(graph, cluster)
    if devices == 4:
        return plan(graph, costs, cluster, batch_size=BATCH, micro_batch=2)
    order = [name for name in graph.order if not graph[name].whole_batch]
    first, second = order[: (len(order) + 1) // 2], order[(len(order) + 1) // 2 :]
    stages = [
        HandStage(ops=tuple(first), devices=(0,), micro_batch=4),
        HandStage(ops=tuple(second), devices=(1,), micro_batch=2),
    ]
    whole = tuple(op.name for op in graph.ops if op.whole_batch)
    stages += [HandStage(ops=whole, devices=(0,), micro_batch=BATCH)] if whole else []
    return hand_plan(graph, costs, cluster, batch_size=BATCH, stages=stages)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """SGD with momentum, which tolerates differences in the last bits of a gradient."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def names_in_model(run: Run) -> dict[str, str]:
    """Return the name in the model of every parameter of what the pipeline runs."""
    names = {id(each): name for name, each in run.model.named_parameters()}
    return {name: names[id(each)] for name, each in run.module.named_parameters()}


def save_for_ranks(name: str, traced: Traced, folder: Path) -> None:
    """Write plans for 2 and 4 devices, the captured model and its loss, which each rank would otherwise trace again."""
    for devices in (2, 4):
        plan_of(traced.graph, devices).save(folder / f"{name}.{devices}.json")
    assert save_capture(traced.captured, folder / f"{name}.capture.json")
    (folder / f"{name}.loss").write_bytes(pickle.dumps(traced.loss))


def train(name: str, folder: Path) -> dict[str, Any]:
    """Train in a pipeline; return losses, this rank's first gradients, weights and an evaluation, by the model's names.

    The evaluation comes first, in a model in training: its mode must come back.

    Args:
        name: of the model.
        folder: as `save_for_ranks` has written it.
    """
    plan = Plan.load(folder / f"{name}.{torch.distributed.get_world_size()}.json")
    captured = load_capture(folder / f"{name}.capture.json", plan.graph)
    assert captured is not None
    loss = pickle.loads((folder / f"{name}.loss").read_bytes())
    run = run_of(name, Traced(captured=captured, loss=loss))
    names = names_in_model(run)
    run.model.train()
    with Pipeline(plan, run.module, run.loss_fn, sgd, options=PipelineOptions(captured=captured)) as pipeline:
        inputs, targets = run.split(0)
        evaluation, outputs = pipeline.evaluate(inputs, targets)
        losses = [pipeline.step(inputs, targets)]
        gradients = {names[key]: each.clone() for key, each in pipeline.gradients().items() if each is not None}
        losses += [pipeline.step(*run.split(step)) for step in range(1, STEPS)]
        pipeline.sync_model()
    return {
        "losses": losses,
        "gradients": gradients,
        "evaluation": evaluation,
        "outputs": [each.clone() for each in leaves(outputs)],
        "kind": type(outputs).__name__,
        "state": {key: each.detach().clone() for key, each in run.model.named_parameters()},
    }


def train_all(folder: str) -> dict[str, Any]:
    """Train every model for which the folder has a plan."""
    return {name: train(name, Path(folder)) for name in MODELS if (Path(folder) / f"{name}.loss").exists()}


def train_unpartitioned(name: str, traced: Traced) -> dict[str, Any]:
    """Train the model as it is on whole mini-batches."""
    run = run_of(name, traced)
    optimizer = sgd(run.model.parameters())
    run.model.eval()
    with torch.no_grad():
        evaluation = run.plain_loss(0).item()
        outputs = leaves(run.module(**run.split(0)[0]))
    run.model.train()
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = run.plain_loss(step)
        loss.backward()
        losses.append(loss.item())
        named = run.model.named_parameters()
        gradients = gradients or {key: copy.deepcopy(each.grad) for key, each in named if each.grad is not None}
        optimizer.step()
    return {
        "losses": losses,
        "gradients": gradients,
        "evaluation": evaluation,
        "outputs": outputs,
        "state": {key: each.detach() for key, each in run.model.named_parameters()},
    }
