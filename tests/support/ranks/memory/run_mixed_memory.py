"""Plans of mixed decisions trained on the same ranks, one after the other: the peaks of each."""

from pathlib import Path

import torch

from bench.running.engines import adamw
from bench.running.predicted.prediction_rank import peak_bytes
from graphpipe.model.capture_file.capture_file import load_capture
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.model.zoo.zoo_model import ZooModel
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions


def zoo_model_in(name: str, dtype: str) -> ZooModel:
    """Return a model of the zoo whose weights have a dtype, such as `bfloat16`."""
    torch.manual_seed(0)
    found = zoo_model(name)
    found.module.to(getattr(torch, dtype))
    return found


def peaks_of_plans(name: str, dtype: str, folder: str, count: int) -> list[float]:
    """Return the peak bytes of a step of each plan, after the step that creates the optimizer state.

    Args:
        name: of the model.
        dtype: of its weights.
        folder: of the capture, and of the plans, `plan-0.json` and so on.
        count: of the plans.
    """
    torch.set_num_threads(1)
    return [_peak(name, dtype, Path(folder), number) for number in range(count)]


def _peak(name: str, dtype: str, folder: Path, number: int) -> float:
    plan, zoo = Plan.load(folder / f"plan-{number}.json"), zoo_model_in(name, dtype)
    captured = load_capture(folder / "capture.json", plan.graph)
    assert captured is not None
    options = PipelineOptions(captured=captured, precision=captured.precision, rollback=False)
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), plan.batch_size)
    with Pipeline(plan, zoo.module, zoo.loss_fn, adamw, options=options) as pipeline:
        pipeline.step(inputs, targets)
        return peak_bytes(pipeline, inputs, targets, folder / f"memory-{number}-{pipeline.world.rank}.json")
