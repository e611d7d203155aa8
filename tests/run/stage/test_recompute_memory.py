"""Predicted memory of recomputing and offloading equals what the runtime holds, for gpt-small in two stages."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from shared_captures import shared_capture

from graphpipe.cluster import Cluster, HostMemory
from graphpipe.costs import Recompute, StageMemory
from graphpipe.costs.analytic import estimate
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.profiler.op_memory import LiveBytes
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.stage.edge_values import edge_specs
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.receive_buffers import NamedTensors
from graphpipe.run.stage.stage_replica_run import StageReplicaRun
from graphpipe.schedule import StageTask
from graphpipe.schedule.schedule import Kind

BATCH, MICRO = 8, 4
FIRST = ("layers.0.attention", "layers.0.feed_forward", "layers.1.attention", "layers.1.feed_forward")
SECOND = tuple(name.replace("0", "2").replace("1", "3") for name in FIRST)
RECOMPUTE: dict[str, tuple[Recompute, Recompute]] = {
    "none": ("none", "none"),
    "full": ("full", "full"),
    "one operator": (FIRST[:1], SECOND[:1]),
    "one of two": (FIRST[1::2], SECOND[1::2]),
    "each operator": (FIRST, SECOND),
    "each layer": (("layers.0", "layers.1"), ("layers.2", "layers.3")),
}
OFFLOAD: dict[str, tuple[Recompute, tuple[str, ...]]] = {
    "one operator": ("none", FIRST[:1]),
    "one of two": ("none", FIRST[1::2]),
    "each operator": ("none", FIRST),
    "each layer": ("none", ("layers.0", "layers.1")),
    "beside recomputation": (FIRST[:1], FIRST[1:3]),
    "around recomputation": (FIRST[1:2], (FIRST[0], FIRST[2])),
}


@dataclass
class Stages:
    """Both stages of gpt-small in this process. The test calls their tasks."""

    recompute: tuple[Recompute, Recompute]
    offload: tuple[str, ...] = ()
    plan: Plan = field(init=False)
    runs: list[StageReplicaRun] = field(init=False)
    batch: MiniBatch = field(init=False)

    def __post_init__(self) -> None:
        self.model = zoo_model("gpt-small")
        captured = shared_capture(self.model.module, self.model.example_inputs)
        graph, cluster = captured.graph, Cluster.resolve("local:2")
        cluster = replace(cluster, host_memory=(HostMemory(node=cluster.devices[0].node, bytes=1e9),))
        cuts = (("layers.0.*", "layers.1.*"), ("layers.2.*", "layers.3.*", "head*"))
        stages = [
            HandStage(ops=ops, devices=(at,), micro_batch=MICRO, recompute=how, offload=() if at else self.offload)
            for at, (ops, how) in enumerate(zip(cuts, self.recompute, strict=True))
        ]
        costs = estimate(graph, cluster)
        self.plan = hand_plan(graph, costs, cluster, batch_size=BATCH, stages=stages, schedule="gpipe")
        options = PipelineOptions(captured=captured)
        replicas = Pipeline(self.plan, self.model.module, self.model.loss_fn, options=options)._worker.replicas
        self.runs = [StageReplicaRun(replicas[at, at], self.model.loss_fn) for at in range(2)]
        inputs, targets = self.model.batch(torch.Generator().manual_seed(0), BATCH)
        self.batch = MiniBatch(
            inputs=inputs, targets=targets, size=BATCH, micro_batches=(MICRO, MICRO), key=(0, 0), training=True,
            specs=edge_specs([run.replica.program for run in self.runs]), check_finite=False,
        )  # fmt: skip

    def do(self, kind: Kind, stage: int, index: int, given: dict[int, NamedTensors]) -> dict[int, NamedTensors]:
        """Run a task on copies of the given values, and return copies of the values that it sends."""
        task, run = StageTask(kind, stage, index), self.runs[stage]
        specs = run.replica.program.receives if kind == "F" else run.replica.program.sends
        for edge, values in given.items():
            for name, buffer in run.received.buffers(task, edge, specs[edge], MICRO).items():
                buffer.copy_(values[name])
        run.do(task, self.rows(index), self.batch)
        sent, run.outgoing = run.outgoing, {}
        return {edge: {name: torch.clone(value) for name, value in values.items()} for edge, values in sent.items()}

    def rows(self, index: int) -> SampleRange:
        return sample_range(BATCH, MICRO, 1, index, 0)

    def memory(self, stage: int) -> StageMemory[float]:
        return stage_memory(self.plan.cost_model, self.plan.stages[stage])


def size(sent: dict[int, NamedTensors]) -> int:
    return sum(tensor.untyped_storage().nbytes() for values in sent.values() for tensor in values.values())


@pytest.mark.parametrize("name", RECOMPUTE)
def test_activations_of_a_sample_in_flight_are_as_predicted(name: str) -> None:
    stages = Stages(RECOMPUTE[name])
    for index in range(2):
        sent: dict[int, NamedTensors] = {}
        for stage in range(2):
            with LiveBytes() as live:
                sent = stages.do("F", stage, index, sent)
                kept = live.bytes - size(sent)
            predicted = stages.memory(stage).per_sample * MICRO
            if stage == 1 and RECOMPUTE[name][1] != "full":  # The loss saves as much as the model's output.
                predicted += stages.plan.graph["head.vocabulary"].output_bytes_per_sample * MICRO
            assert kept == pytest.approx(predicted, rel=0.1), f"stage {stage}"


@pytest.mark.parametrize("name", OFFLOAD)
def test_offloaded_bytes_are_as_predicted(name: str) -> None:
    stages = Stages((OFFLOAD[name][0], "none"), OFFLOAD[name][1])
    for index in range(2):
        with LiveBytes() as live:
            sent = stages.do("F", 0, index, {})
            run = stages.runs[0]
            run.offload(index)
            offloaded = run.micro_batches[index].offloaded
            assert offloaded is not None
            away = sum(each.count for each in offloaded.storages)
            kept = live.bytes - size(sent) - away
        memory = stages.memory(0)
        assert away == pytest.approx(memory.offloaded * MICRO, rel=0.1)
        assert kept == pytest.approx(memory.per_sample * MICRO, rel=0.1)
        assert memory.moving == 2 * memory.offloaded * MICRO


@pytest.mark.parametrize("name", ["full", "each operator"])
def test_a_backward_holds_recomputed_tensors_as_predicted(name: str) -> None:
    stages = Stages(RECOMPUTE[name])
    sent = stages.do("F", 0, 0, {})
    found: list[int] = []
    with LiveBytes() as live:
        # The backward recomputes the last operator first, and its hook then measures.
        stages.model.module.get_submodule(FIRST[-1]).register_forward_hook(lambda *_: found.append(live.bytes))
        stages.do("B", 0, 0, {edge: {name: torch.zeros_like(v) for name, v in vs.items()} for edge, vs in sent.items()})
    gradient = size(sent)
    predicted = stages.memory(0).recomputed
    assert found[0] - 2 * gradient == pytest.approx(predicted, rel=0.1)
