"""What is tuned: a configuration or a model, as every rank loads it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ConfigDict
from torch import nn

from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.weights.weight_update import OptimizerFactory
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.configured_options import configured_options
from graphpipe.training.task.checked_model import find_checked_model
from graphpipe.training.task.factories import optimizer_factory
from graphpipe.training.task.first_samples import first_samples
from graphpipe.training.task.task import Batch, load_task


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedModelName:
    """Names what is tuned, so that a rank can load it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: str = ""
    """A zoo name, or a function that returns a model or a task. Empty for a configuration."""
    config: str = ""
    """The file of a configuration as JSON."""
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedModel:
    """A model to train, with its loss, its optimizer and one mini-batch."""

    module: nn.Module
    loss_fn: LossFunction
    optimizer: OptimizerFactory
    batch: Batch
    options: PipelineOptions
    """Those that a configuration sets."""


def load_tuned_model(word: TunedModelName) -> TunedModel:
    """Load the model anew.

    Raises:
        InvalidInput: it cannot be loaded.
    """
    return _of_config(word) if word.config else _of_model(word)


def _of_config(word: TunedModelName) -> TunedModel:
    config = TrainConfig.load(Path(word.config))
    task = load_task(config.task, config.folder, config.train.seed)
    return TunedModel(
        module=task.model,
        loss_fn=task.loss_fn,
        optimizer=optimizer_factory(config, task),
        batch=first_samples(task, word.batch_size, word.batch_size, config.train.seed),
        options=configured_options(config),
    )


def _of_model(word: TunedModelName) -> TunedModel:
    torch.manual_seed(0)  # the same weights on every rank
    model = find_checked_model(word.model)
    return TunedModel(
        module=model.module,
        loss_fn=model.loss_fn,
        optimizer=torch.optim.AdamW,
        batch=model.samples(word.batch_size),
        options=PipelineOptions(),
    )
