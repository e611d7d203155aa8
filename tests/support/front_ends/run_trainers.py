"""Tiny models of `transformers` and their data, for `Trainer` and for `PipelineTrainer`, on one rank or two."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.graph import Graph
from graphpipe.integrations.transformers import PipelineSeq2SeqTrainer, PipelineTrainer
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans.plan import Plan

WORDS, LENGTH, IMAGE = 50, 8, 49
SAMPLES, BATCH = 22, 8
"""Three mini-batches an epoch: two of 8 samples, and one of 6."""
Sample = dict[str, Tensor]


class Samples(Dataset[Sample]):
    """Texts, some of whose words are no labels; with pictures, each has one, for which four words stand."""

    def __init__(self, count: int, seed: int = 0, *, pictures: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(3, IMAGE, (count, LENGTH), generator=generator)
        self.columns = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.clone()}
        for row in range(count):
            self.columns["labels"][row, 4 + row % 4 :] = -100
        if pictures:
            words[:, :4] = IMAGE
            self.columns["labels"][:, :4] = -100
            self.columns["pixel_values"] = torch.randn(count, 3, 16, 16, generator=generator)

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, index: int) -> Sample:
        return {name: column[index] for name, column in self.columns.items()}


class Stream(IterableDataset[Sample]):
    """The same samples as a stream, whose length nobody knows."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Sample]:
        return (self.samples[index] for index in range(len(self.samples)))


def gpt2() -> Any:
    """GPT-2, whose embedding and head are tied."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


def t5() -> Any:
    """T5, which makes its decoder's inputs from the labels."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, dropout_rate=0.0
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def llava() -> Any:
    """LLaVA: a vision tower and a projector before a language model."""
    torch.manual_seed(0)
    layers: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}
    vision = transformers.CLIPVisionConfig(**layers, intermediate_size=64, image_size=16, patch_size=8)
    layers |= {"num_hidden_layers": 1, "num_key_value_heads": 2}
    text = transformers.LlamaConfig(**layers, intermediate_size=64, vocab_size=WORDS)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    return transformers.LlavaForConditionalGeneration(config)


def lora() -> Any:
    """GPT-2 with adapters: everything else is frozen."""
    model = gpt2()
    torch.manual_seed(1)
    adapters = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, adapters)


MODELS: dict[str, Callable[[], Any]] = {"gpt2": gpt2, "t5": t5, "llava": llava, "lora": lora}


def two_stages(graph: Graph, costs: CostTable, cluster: Cluster, batch_size: int) -> Plan:
    """Return a plan of two stages with micro-batches of different sizes."""
    names = [op.name for op in graph.ops]
    half = len(names) // 2
    parts = [names[:half], names[half:]]
    stages = [
        HandStage(name=f"stage{n}", ops=tuple(part), devices=(n,), micro_batch=2 * (n + 1))
        for n, part in enumerate(parts)
    ]
    return hand_plan(graph, costs, cluster, batch_size=batch_size, stages=stages, schedule="1f1b")


def arguments(folder: Path, kind: type[TrainingArguments] = TrainingArguments, **more: Any) -> TrainingArguments:
    """Return training arguments for an epoch of three steps."""
    given: dict[str, Any] = {
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "learning_rate": 1e-2,
        "warmup_steps": 1,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    return kind(output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True, **{**given, **more})


def total(prediction: Any) -> dict[str, float]:
    """Return a metric that depends on every score."""
    scores = prediction.predictions
    return {"total": float((scores[0] if isinstance(scores, tuple) else scores).sum())}


def trainer(name: str, folder: Path, *, pipeline: bool, **more: Any) -> Any:
    """Return a trainer of a model.

    Args:
        name: of the model.
        folder: of its checkpoints.
        pipeline: whether a pipeline of two stages trains it.
        more: training arguments. `predict_with_generate` asks for a trainer of sequences.
    """
    pictures, generates = name == "llava", "predict_with_generate" in more
    samples = Samples(SAMPLES, pictures=pictures)
    kinds = (Seq2SeqTrainer, PipelineSeq2SeqTrainer) if generates else (Trainer, PipelineTrainer)
    given: dict[str, Any] = {"plan": two_stages, "cluster": "local:2"} if pipeline else {}
    return kinds[pipeline](
        model=MODELS[name](),
        args=arguments(folder, Seq2SeqTrainingArguments if generates else TrainingArguments, **more),
        train_dataset=Stream(samples) if pictures else samples,
        eval_dataset=Samples(10, seed=7, pictures=pictures),
        compute_metrics=total,
        **given,
    )


def result_of(trained: Any) -> dict[str, Any]:
    """Return what a training logged, and its trained weights."""
    weights = {name: each.detach().clone() for name, each in trained.model.state_dict().items()}
    return {"log": trained.state.log_history, "weights": weights}


def train_on_ranks(folder: str, jobs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Train models on this rank of two, and return their results. A second training resumes from the first's middle."""
    as_torchrun()
    results = {}
    for name, more in jobs.items():
        place = Path(folder) / name
        trained = trainer(name, place, pipeline=True, **more)
        trained.train()
        results[name] = result_of(trained)
        if more.get("save_steps") == 1:
            again = trainer(name, place, pipeline=True, **more)
            again.train(resume_from_checkpoint=str(place / "checkpoint-2"))
            results[f"{name} resumed"] = result_of(again)
    return results


def as_torchrun() -> None:
    """Describe this rank in the environment as torchrun does."""
    import torch.distributed as dist

    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
