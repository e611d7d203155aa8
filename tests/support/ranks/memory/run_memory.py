"""A small model trained on some ranks: the peak of torch's allocations on each rank during a step."""

from pathlib import Path

import torch

from bench.running.engines import adamw
from bench.running.predicted.prediction_rank import peak_bytes
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions


def peak_of_a_step(name: str, folder: str, mini_batches: int = 1) -> float:
    """Return the peak bytes of the step, or segment, after the step that creates the optimizer state.

    Args:
        name: of the model.
        folder: of its plan and its capture.
        mini_batches: of the segment.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plan, zoo = Plan.load(Path(folder) / "plan.json"), zoo_model(name)
    captured = load_capture(Path(folder) / "capture.json", plan.graph)
    assert captured is not None
    options = PipelineOptions(captured=captured, precision=captured.precision, rollback=False)
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), plan.batch_size)
    with Pipeline(plan, zoo.module, zoo.loss_fn, adamw, options=options) as pipeline:
        pipeline.step(inputs, targets)
        rank = pipeline.world.rank
        return peak_bytes(pipeline, inputs, targets, Path(folder) / f"memory-{rank}.json", mini_batches)
