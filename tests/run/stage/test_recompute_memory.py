"""What the cost model says of recomputation against the bytes that the runtime holds: gpt-small, cut in the middle."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from graphpipe.api import estimate, hand_plan
from graphpipe.cluster.presets import resolve
from graphpipe.costs import Recompute
from graphpipe.model.capture.capture import capture
from graphpipe.model.zoo import zoo_model
from graphpipe.planners.by_hand import HandStage
from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.profiler.live_bytes import Living
from graphpipe.run import Pipeline
from graphpipe.run.stage.edge_values import edge_specs
from graphpipe.run.stage.mini_batch import Batch
from graphpipe.run.stage.receive_buffers import Values
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.schedule import Task

BATCH, MICRO = 8, 4
FIRST = ("layers.0.attention", "layers.0.feed_forward", "layers.1.attention", "layers.1.feed_forward")
SECOND = tuple(name.replace("0", "2").replace("1", "3") for name in FIRST)
WAYS: dict[str, tuple[Recompute, Recompute]] = {
    "none": ("none", "none"),
    "full": ("full", "full"),
    "one operator": (FIRST[:1], SECOND[:1]),
    "one of two": (FIRST[1::2], SECOND[1::2]),
    "each operator": (FIRST, SECOND),
    "each layer": (("layers.0", "layers.1"), ("layers.2", "layers.3")),
}


@dataclass
class Stages:
    """Both stages of gpt-small in this process, and their tasks by hand."""

    ways: tuple[Recompute, Recompute]
    plan: Plan = field(init=False)
    replicas: list[StageReplica] = field(init=False)
    batch: Batch = field(init=False)

    def __post_init__(self) -> None:
        self.model = zoo_model("gpt-small")
        graph, cluster = capture(self.model.module, self.model.example_inputs), resolve("local:2")
        cuts = (("layers.0.*", "layers.1.*"), ("layers.2.*", "layers.3.*", "head*"))
        stages = [
            HandStage(ops=ops, devices=(at,), micro_batch=MICRO, recompute=how)
            for at, (ops, how) in enumerate(zip(cuts, self.ways, strict=True))
        ]
        costs = estimate(graph, cluster)
        self.plan = hand_plan(graph, costs, cluster, batch_size=BATCH, stages=stages, schedule="gpipe")
        held = Pipeline(self.plan, self.model.module, self.model.loss_fn).held().worker.replicas
        self.replicas = [held[at, at] for at in range(2)]
        inputs, targets = self.model.batch(torch.Generator().manual_seed(0), BATCH)
        self.batch = Batch(
            inputs=inputs, targets=targets, size=BATCH, micro_batches=(MICRO, MICRO), key=(0, 0), training=True,
            specs=edge_specs([each.program for each in self.replicas]), check_finite=False,
        )  # fmt: skip

    def do(self, kind: str, stage: int, index: int, given: dict[int, Values]) -> dict[int, Values]:
        """Do a task on copies of what is given; return copies of what it sends."""
        task, replica = Task(kind, stage, index), self.replicas[stage]
        specs = replica.program.receives if kind == "F" else replica.program.sends
        for edge, values in given.items():
            for name, buffer in replica.inbox.buffers(task, edge, specs[edge], MICRO).items():
                buffer.copy_(values[name])
        replica.do(task, self.rows(index), self.batch, self.model.loss_fn)
        sent, replica.outgoing = replica.outgoing, {}
        return {edge: {name: torch.clone(value) for name, value in values.items()} for edge, values in sent.items()}

    def rows(self, index: int) -> SampleRange:
        return sample_range(BATCH, MICRO, 1, index, 0)

    def predicted(self, stage: int, of: Callable[..., float]) -> float:
        return of(self.plan.stages[stage].ops, self.plan.stages[stage].recompute) * MICRO


def size(sent: dict[int, Values]) -> int:
    return sum(tensor.untyped_storage().nbytes() for values in sent.values() for tensor in values.values())


@pytest.mark.parametrize("way", WAYS)
def test_what_a_sample_in_flight_keeps_is_as_predicted(way: str) -> None:
    stages = Stages(WAYS[way])
    for index in range(2):
        sent: dict[int, Values] = {}
        for stage in range(2):
            with Living() as living:
                sent = stages.do("F", stage, index, sent)
                kept = living.bytes - size(sent)
            predicted = stages.predicted(stage, stages.plan.cost_model.activation_bytes)
            if stage == 1 and WAYS[way][1] != "full":  # The loss saves as much as the model's output.
                predicted += stages.plan.graph["head.vocabulary"].output_bytes_per_sample * MICRO
            assert kept == pytest.approx(predicted, rel=0.1), f"stage {stage}"


@pytest.mark.parametrize("way", ["full", "each operator"])
def test_a_backward_holds_what_is_computed_again_once_more(way: str) -> None:
    stages = Stages(WAYS[way])
    sent = stages.do("F", 0, 0, {})
    found: list[int] = []
    with Living() as living:
        # The last operator is the first to be gone back through; its hook comes when it is computed the second time.
        stages.model.module.get_submodule(FIRST[-1]).register_forward_hook(lambda *_: found.append(living.bytes))
        stages.do("B", 0, 0, {edge: {name: torch.zeros_like(v) for name, v in vs.items()} for edge, vs in sent.items()})
    gradient = size(sent)
    predicted = stages.predicted(0, stages.plan.cost_model.recomputed_bytes)
    assert found[0] - 2 * gradient == pytest.approx(predicted, rel=0.1)
