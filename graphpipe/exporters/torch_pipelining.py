"""A Python module for `torch.distributed.pipelining`: split points, ranks and schedule.

References:
    docs.pytorch.org, torch.distributed.pipelining, torch 2.13.
"""

from graphpipe.errors import InvalidInput
from graphpipe.exporters.exporter import Exported, Exporter
from graphpipe.exporters.notes import check_synchronous, notes_of
from graphpipe.exporters.stage_chain import chain_of
from graphpipe.exporters.stage_modules import check_parameters, first_calls
from graphpipe.exporters.torch_schedule import torch_schedule
from graphpipe.plans import Plan

_TEXT = '''\
"""A pipeline of {stages} stages that GraphPipe planned, for torch.distributed.pipelining (torch 2.11 or later).

Start {world} processes with torchrun and initialise the process group. Every process calls `build_schedule` with
the whole model, and then `schedule.step` once for every mini-batch. The first pipeline rank passes the inputs, and
the last one passes `target=`. Each replica passes its own share of the mini-batch. After the step it calls
`average_gradients`.{notes}
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import {schedule}, SplitPoint, pipeline

RANKS = {ranks!r}
"""By pipeline rank: the ranks of its replicas, which are the plan's devices."""
STAGES = {by_rank!r}
"""By pipeline rank: its stages."""
SPLIT_BEFORE = {split!r}
"""The submodule whose call begins each stage after the first."""
MICRO_BATCHES = {count}
"""Of one mini-batch."""
MICRO_BATCH = {micro_batch}
"""Samples on one replica. `build_schedule` needs example inputs with so many."""


def make_mesh(device: torch.device) -> DeviceMesh:
    """Return the ranks as a mesh of pipeline ranks and replicas."""
    return DeviceMesh(device.type, RANKS, mesh_dim_names=("pipeline", "data"))


def build_schedule(model, example_args, loss_fn, mesh, device, example_kwargs=None):
    """Return this rank's schedule and the modules of its stages, whose parameters the optimizer gets."""
    group = mesh.get_group("pipeline")
    splits = dict.fromkeys(SPLIT_BEFORE, SplitPoint.BEGINNING)
    pipe = pipeline(model, mb_args=example_args, mb_kwargs=example_kwargs, split_spec=splits)
    stages = [pipe.build_stage(index, device, group) for index in STAGES[group.rank()]]
    return {schedule}({passed}, MICRO_BATCHES, loss_fn), [stage.submod for stage in stages]


def average_gradients(modules, mesh) -> None:
    """Replace each gradient by its mean over the replicas."""
    group = mesh.get_group("data")
    for parameter in (each for module in modules for each in module.parameters() if each.grad is not None):
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
'''


def write_torch_pipelining(plan: Plan) -> Exported:
    """Return a plan as a Python module.

    Raises:
        InvalidInput: torch's pipelines cannot hold the plan.
    """
    check_synchronous(plan)
    chain = chain_of(plan)
    if chain.tensor > 1:
        what = f"{chain.tensor} devices share each replica, and torch's pipelines do not share out modules"
        raise InvalidInput(what, where="plan, tensor", remedy="Use `--format torchtitan`, or plan with `--tensor 1`.")
    check_parameters(plan)
    name, written = torch_schedule(plan, chain)
    notes = notes_of(plan, written)
    number = {device: rank for rank, device in enumerate(plan.used_devices)}
    text = _TEXT.format(
        stages=len(chain.stages),
        world=len(plan.used_devices),
        notes="".join(f"\n\n{note}" for note in notes),
        schedule=f"Schedule{name}",
        ranks=[[number[device] for device in group] for group in chain.groups],
        by_rank=chain.stages_by_rank,
        split=first_calls(plan, chain.stages),
        count=plan.batch_size // chain.micro_batch,
        micro_batch=chain.micro_batch // chain.degree,
        passed="stages[0]" if chain.rounds == 1 else "stages",
    )
    return Exported(text=text, notes=notes)


TORCH_PIPELINING = Exporter(
    name="torch-pipelining",
    summary="a Python module with split points, ranks and schedule for torch.distributed.pipelining",
    write=write_torch_pipelining,
)
