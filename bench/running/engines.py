"""The compared engines, each as a function that does one training step."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import ScheduleDualPipeV

from bench.running.alternate import Step
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions

Loss = Callable[[Tensor, Tensor], Tensor]
Inputs = dict[str, Tensor]
_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def adamw(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """The optimizer of every engine."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def ours(
    plan: Plan, model: nn.Module, loss: Loss, inputs: Inputs, targets: Tensor, *, check_finite: bool = True
) -> Step:
    """Return a step of the pipeline with its defaults: it checks for NaN, and every rank gets the loss."""
    pipeline = Pipeline(plan, model, loss, adamw, options=PipelineOptions(check_finite=check_finite))
    return lambda: pipeline.step(inputs, targets)


def theirs(
    module: nn.Module,
    loss: Loss,
    schedule: str,
    micro_batches: int,
    inputs: Sequence[Tensor],
    targets: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
) -> Step:
    """Return a step of torch.distributed.pipelining, as its documentation has it, for this rank's stage.

    Outputs are not kept, which its default does: nobody needs them. The stages are on the ranks of a group, in their
    order: by default on all ranks.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    stage = PipelineStage(module, rank, size, torch.device("cpu"), group=group)
    runner = _SCHEDULES[schedule](stage, micro_batches, loss_fn=loss)
    optimizer = adamw([*module.parameters()])

    contiguous = [each.contiguous() for each in inputs]  # torch 2.11 refuses other strides

    def step() -> float | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            runner.step(*contiguous, return_outputs=False)
        elif rank == size - 1:
            runner.step(target=targets, losses=losses, return_outputs=False)
        else:
            runner.step(return_outputs=False)
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else None

    return step


def theirs_in_a_v(
    modules: Sequence[nn.Module], loss: Loss, micro_batches: int, inputs: Sequence[Tensor], targets: Tensor
) -> Step:
    """Return a step of torch's DualPipeV for this rank's two stages, the first and the last ones on rank 0."""
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = (rank, 2 * size - 1 - rank)
    stages = [
        PipelineStage(module, number, 2 * size, torch.device("cpu"))
        for module, number in zip(modules, numbers, strict=True)
    ]
    runner = ScheduleDualPipeV([*stages], micro_batches, loss_fn=loss)  # pyright: ignore[reportArgumentType]
    contiguous = [each.contiguous() for each in inputs]
    optimizer = adamw([parameter for module in modules for parameter in module.parameters()])

    def step() -> float | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            runner.step(*contiguous, target=targets, losses=losses, return_outputs=False)
        else:
            runner.step(return_outputs=False)
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else None

    return step


def plain(model: nn.Module, loss: Loss, micro_batches: int, inputs: Inputs, targets: Tensor) -> Step:
    """Return a step of gradient accumulation in plain PyTorch."""
    optimizer = adamw([*model.parameters()])

    def step() -> float:
        optimizer.zero_grad()
        total = torch.zeros(())
        rows = zip(*(tensor.chunk(micro_batches) for tensor in inputs.values()), strict=True)
        for some, wanted in zip(rows, targets.chunk(micro_batches), strict=True):
            value = loss(model(**dict(zip(inputs, some, strict=True))), wanted) / micro_batches
            value.backward()
            total += value.detach()
        optimizer.step()
        return total.item()

    return step
