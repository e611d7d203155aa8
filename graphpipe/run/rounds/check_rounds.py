"""Checks that a pipeline can compute gradients apart, before anything runs."""

from collections.abc import Iterator
from typing import NamedTuple

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.comm.world import World
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.schedule.gradient_tasks.rounds import Rounds

_STAGES = "Train the plan itself, whose stages compute all gradients where their forward runs."


class _Conflict(NamedTuple):
    where: str
    what: str
    remedy: str


def check_rounds(rounds: Rounds, plan: Plan, world: World, options: PipelineOptions) -> None:
    """Check what cannot be combined with gradients on other devices.

    Args:
        rounds: to be run.
        plan: has each of their layers as a stage.
        world: this rank.
        options: of the pipeline.

    Raises:
        InvalidInput: names the option, or the parameter that layers share.
    """
    for conflict in (*_of_model(plan), *_of_options(rounds, options)):
        what = f"{conflict.what}, and gradients are computed apart"
        raise InvalidInput(what, where=conflict.where, remedy=conflict.remedy)
    if world.size > 1 and world.in_order:
        what = "rounds send messages between CPUs (gloo), and these ranks have other devices"
        raise InvalidInput(what, where="device", remedy="Give PipelineOptions(device='cpu'), or one rank.")


def _of_model(plan: Plan) -> Iterator[_Conflict]:
    for tied in plan.tied_gradients:
        first, second = (plan.stages[at].name for at in tied.stages[:2])
        yield _Conflict(f"parameter '{tied.parameters[0]}'", f"layers '{first}' and '{second}' share it", _STAGES)
    for op in plan.graph.ops:
        if op.whole_batch and plan.stages[0].micro_batch < plan.batch_size:
            what = "needs the whole mini-batch at once, and rounds have one micro-batch for all layers"
            yield _Conflict(f"operator '{op.name}'", what, "Plan with micro-batches of the whole mini-batch.")


def _of_options(rounds: Rounds, options: PipelineOptions) -> Iterator[_Conflict]:
    if options.weights is not None:
        remedy = "Leave it out: place_gradients(plan, weights=...) says which weights are read."
        yield _Conflict("weights", f"is '{options.weights}'", remedy)
    if options.compile:
        yield _Conflict("compile", "stages are compiled", "Leave it out.")
    if options.precision == "fp16":
        yield _Conflict("precision", "is fp16, which scales the loss", "Choose bf16 or fp32.")
    if options.average_decay is not None:
        yield _Conflict("average_decay", "weights are averaged where they are updated", "Leave it out.")
    if options.clip_norm is not None and rounds.weights != "flush":
        what = "needs the gradients of all layers before any update, but layers update at different times"
        yield _Conflict("clip_norm", what, "Leave it out, or place gradients with weights='flush'.")


def compiled_apart(layer: str) -> InvalidInput:
    """Return the error of a layer that the user has compiled, whose backward is code of the compiler."""
    what = f"layer '{layer}' is compiled by torch.compile, and gradients are computed apart"
    return InvalidInput(what, where="model", remedy="Give the model as it was before torch.compile.")
