"""Ranks that train one step with a module that `graphpipe export` wrote for torch's pipelines."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphpipe.run.comm.world import join

SAMPLES, WIDTH = 16, 8


def build_model() -> nn.Module:
    """Return a chain of blocks."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 1))


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs (samples, features) and targets (samples, 1) of a mini-batch."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, WIDTH, generator=generator), torch.randn(SAMPLES, 1, generator=generator)


def train_one_step(module: str) -> tuple[list[float], dict[str, list[float]]]:
    """Return the losses of this rank's micro-batches, if it computes them, and the gradients of its parameters."""
    world = join("cpu", 60)
    exported: Any = _load(module)
    mesh, device = exported.make_mesh(torch.device("cpu")), torch.device("cpu")
    example = torch.zeros(exported.MICRO_BATCH, WIDTH)
    loss = nn.functional.mse_loss
    schedule, modules = exported.build_schedule(build_model(), (example,), loss, mesh, device)
    replicas = len(exported.RANKS[0])
    (replica,) = (ranks.index(world.rank) for ranks in exported.RANKS if world.rank in ranks)
    inputs, targets = (each.chunk(replicas)[replica] for each in make_batch())
    place, losses = mesh.get_local_rank("pipeline"), list[torch.Tensor]()
    first, last = place == 0, place == len(exported.RANKS) - 1
    schedule.step(*((inputs,) if first else ()), **({"target": targets, "losses": losses} if last else {}))
    exported.average_gradients(modules, mesh)
    named = {name: each.grad for module in modules for name, each in module.named_parameters()}
    return [float(each) for each in losses], {
        name: each.flatten().tolist() for name, each in named.items() if each is not None
    }


def _load(path: str) -> object:
    spec = importlib.util.spec_from_file_location("exported", Path(path))
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
