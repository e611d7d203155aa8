"""A chain with dropout and BatchNorm, cut into stages that share devices, recompute or offload."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from run_models import cross_entropy
from run_plans import StageLine, captured_plan
from run_splits import in_halves
from shared_captures import captured_of
from torch import Tensor, nn

from graphpipe.cluster import HostMemory
from graphpipe.costs import Recompute
from graphpipe.files.json_body import to_body
from graphpipe.model import DagModule
from graphpipe.run import Pipeline, PipelineOptions

BATCH = 8
INTERLEAVED: list[StageLine] = [(["a"], [0], 2), (["b"], [1], 2), (["c"], [0], 2), (["d"], [1], 2)]

IN_A_V: list[StageLine] = [(["a"], [0], 2), (["b"], [1], 2), (["c"], [1], 2), (["d"], [0], 2)]

KEPT: Mapping[int, tuple[str, ...]] = MappingProxyType({})
HOST: Mapping[int, tuple[int, ...]] = MappingProxyType({})
NOTHING: Mapping[int, Recompute] = MappingProxyType({})


class Running(nn.Module):
    """Scales by a buffer that every forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.ones(()))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x / self.calls.clone()


def chain(dropout: float = 0.0) -> DagModule:
    """a -> b -> c -> d."""
    torch.manual_seed(0)
    return DagModule(
        {
            "a": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8)),
            "b": nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(dropout)),
            "c": nn.Sequential(Running(), nn.Linear(8, 8), nn.GELU(), nn.Dropout(dropout)),
            "d": nn.Linear(8, 3),
        },
        inputs={"a": ["x"], "b": ["a"], "c": ["b"], "d": ["c"]},
    )


def chain_batch(seed: int = 1) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and targets of `chain`."""
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(BATCH, 6, generator=generator)}, torch.randint(0, 3, (BATCH,), generator=generator)


def chain_pipeline(
    stages: Sequence[StageLine],
    schedule: str = "1f1b",
    *,
    recompute: Mapping[int, Recompute] = NOTHING,
    offload: Mapping[int, tuple[str, ...]] = KEPT,
    offload_to: Mapping[int, tuple[int, ...]] = HOST,
    in_flight: int = BATCH,
    dropout: float = 0.3,
    **options: Any,
) -> tuple[Pipeline, DagModule]:
    """Return a pipeline of `chain` whose stages recompute and offload what is said, and the model."""
    model, (inputs, _) = chain(dropout), chain_batch()
    plan = in_halves(captured_plan(model, inputs, stages, BATCH), schedule)
    changed = (
        replace(
            stage,
            recompute=recompute.get(number, "none"),
            offload=offload.get(number, ()),
            offload_to=offload_to.get(number, ()),
            in_flight=in_flight,
        )
        for number, stage in enumerate(plan.stages)
    )
    if offload:
        nodes = {device.node for device in plan.cluster.devices}
        host = tuple(HostMemory(node=node, bytes=1e9) for node in sorted(nodes))
        plan = replace(plan, cluster=replace(plan.cluster, host_memory=host))
    optimizer = options.pop("optimizer", None)
    given = PipelineOptions(debug=True, captured=captured_of(plan), **options)
    return Pipeline(replace(plan, stages=tuple(changed)), model, cross_entropy, optimizer, options=given), model


def train_chain(
    stages: Sequence[StageLine], schedule: str, recompute: Mapping[int, Recompute] = NOTHING, **options: Any
) -> dict[str, Any]:
    """Train two steps; return the losses, the last gradients, and the whole model's state."""
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.05)  # noqa: E731
    pipeline, model = chain_pipeline(stages, schedule, recompute=recompute, optimizer=adamw, record=True, **options)
    with pipeline:
        losses = [pipeline.step(*chain_batch(seed=step)) for step in range(2)]
        gradients = {name: gradient.clone() for name, gradient in pipeline.gradients().items() if gradient is not None}
        trace = to_body(pipeline.trace())
        pipeline.sync_model()
    return {"losses": losses, "gradients": gradients, "state": dict(model.state_dict()), "trace": trace}


def train_mixed_in_bf16(
    stages: Sequence[StageLine], recompute: Mapping[int, Recompute], offload: Mapping[int, tuple[str, ...]]
) -> dict[str, Any]:
    """Train as `train_chain` does under 1F1B, in bf16."""
    return train_chain(stages, "1f1b", recompute, offload=offload, precision="bf16")
