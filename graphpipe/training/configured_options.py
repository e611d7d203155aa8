"""The options of a pipeline that a configuration sets."""

from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.training.config.settings import TrainConfig


def configured_options(config: TrainConfig) -> PipelineOptions:
    """Return what a configuration says of how a pipeline trains."""
    return PipelineOptions(
        engine=config.train.engine,
        shard_optimizer=config.train.shard_optimizer,
        compile=config.train.compile,
        precision=config.train.precision,
        clip_norm=config.train.clip_norm,
        seed=config.train.seed,
        timeout_seconds=config.run.timeout_seconds,
        average_decay=config.evaluation.average_decay,
    )
