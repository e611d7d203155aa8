"""Devices that each host two stages of one chain: stages 0 and 2 on one, stages 1 and 3 on the other."""

from pathlib import Path

import pytest
import torch
from run_chain import IN_A_V, INTERLEAVED, chain, chain_batch, chain_pipeline, train_chain
from run_models import cross_entropy
from run_plans import StageLine
from run_ranks import run_ranks, values

from graphpipe.files.json_body import from_body
from graphpipe.run.step.train_step import TrainStep
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.trace import Trace


@pytest.mark.parametrize(
    ("order", "stages"),
    [("1f1b", INTERLEAVED), ("interleaved", INTERLEAVED), ("zb-h1", INTERLEAVED), ("dualpipe-v", IN_A_V)],
)
def test_two_ranks_with_two_stages_each_train_like_one(order: str, stages: list[StageLine], tmp_path: Path) -> None:
    single = train_chain(stages, order)
    ranks = values(run_ranks(train_chain, 2, tmp_path, stages, order))
    for rank in ranks:
        assert rank["losses"] == single["losses"]
        for what in ("gradients", "state"):
            for name, tensor in rank[what].items():
                assert torch.equal(tensor, single[what][name]), name
    assert ranks[0]["gradients"].keys() | ranks[1]["gradients"].keys() == single["gradients"].keys()
    trace = from_body(Trace, ranks[0]["trace"], "trace")
    hosted = {(device, stage) for stage, (_, (device,), _) in enumerate(stages)}
    assert {(span.device, span.stage) for span in trace.spans if span.kind == "F"} == hosted


def test_gradients_equal_those_of_the_unpartitioned_model() -> None:
    pipeline, _ = chain_pipeline([(names, on, 8) for names, on, _ in INTERLEAVED], dropout=0.0)
    twin, (inputs, targets) = chain(), chain_batch()
    loss = cross_entropy(twin(**inputs), targets)
    loss.backward()
    assert pipeline.step(inputs, targets) == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(pipeline.gradients()[name], parameter.grad, rtol=1e-5, atol=1e-7)


def test_a_device_begins_its_later_stage_before_its_earlier_stage_ends() -> None:
    pipeline, _ = chain_pipeline(INTERLEAVED, in_flight=4)
    tasks = [str(task) for task in build_schedule(pipeline.plan).devices[0]]
    assert tasks.index("F2.0") < tasks.index("B0.0") < tasks.index("F0.3")


def test_more_samples_in_flight_than_the_plan_allows_are_an_error() -> None:
    pipeline, _ = chain_pipeline([(["a", "b"], [0], 2), (["c", "d"], [1], 2)], in_flight=4)
    assert pipeline.step(*chain_batch()) > 0  # 1F1B has at most two micro-batches in flight
    greedy, _ = chain_pipeline([(["a", "b"], [0], 2), (["c", "d"], [1], 2)], "gpipe")
    training = pipeline._parts.training
    assert isinstance(training, TrainStep)
    training.lowered = lower(pipeline.plan, build_schedule(greedy.plan))
    with pytest.raises(
        AssertionError, match=r"stage 'a\+b', replica 0: with F0.2 6 samples are in flight, .* allows 4"
    ):
        pipeline.step(*chain_batch())
