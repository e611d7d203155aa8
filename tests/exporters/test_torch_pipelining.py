"""The module that is written for torch's pipelines trains as plain PyTorch does."""

from pathlib import Path

import pytest
import torch
from run_exported import SAMPLES, WIDTH, build_model, make_batch, train_one_step
from run_ranks import run_ranks, values
from torch import nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.exporters.torch_pipelining import write_torch_pipelining
from graphpipe.model.capture.capture import capture
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans import Plan


def planned(stages: list[tuple[tuple[str, ...], tuple[int, ...]]], schedule: str = "1f1b") -> Plan:
    cluster = Cluster.preset(f"local:{1 + max(max(devices) for _, devices in stages)}")
    graph = capture(build_model(), torch.zeros(4, WIDTH))
    return hand_plan(
        graph,
        estimate(graph, cluster),
        cluster,
        batch_size=SAMPLES,
        stages=[HandStage(ops=ops, devices=devices, micro_batch=4) for ops, devices in stages],
        schedule=schedule,
    )


FIRST, LAST = ("0.*", "1.*"), ("2.*", "3.*", "4")


@pytest.mark.parametrize(
    "stages",
    [
        [(FIRST, (0, 1)), (LAST, (2, 3))],
        [(("0.*",), (0,)), (("1.*",), (1,)), (("2.*", "3.*"), (0,)), (("4",), (1,))],
    ],
    ids=["two replicas of each stage", "two stages of each rank"],
)
def test_losses_and_gradients_are_those_of_plain_pytorch(
    stages: list[tuple[tuple[str, ...], tuple[int, ...]]], tmp_path: Path
) -> None:
    plan = planned(stages)
    path = tmp_path / "pipeline.py"
    path.write_text(write_torch_pipelining(plan).text)
    model, (inputs, targets) = build_model(), make_batch()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    expected = {name: each.grad for name, each in model.named_parameters()}
    losses, found = list[float](), dict[str, torch.Tensor]()
    for rank_losses, gradients in values(run_ranks(train_one_step, len(plan.used_devices), tmp_path, str(path))):
        losses += rank_losses
        found |= {name: torch.tensor(each) for name, each in gradients.items()}
    assert sum(losses) / len(losses) == pytest.approx(loss.item(), rel=1e-6)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert each is not None
        torch.testing.assert_close(found[name], each.flatten(), rtol=1e-5, atol=1e-7)


def test_a_v_is_refused() -> None:
    plan = planned([(("0.*",), (0,)), (("1.*",), (1,)), (("2.*", "3.*"), (1,)), (("4",), (0,))])
    with pytest.raises(InvalidInput, match="as a V, and torch has no 1F1B for it"):
        write_torch_pipelining(plan)
