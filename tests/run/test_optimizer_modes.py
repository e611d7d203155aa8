"""Optimizers with other weights for evaluations, as those of the package `schedulefree` have.

Their steps ended with an error unless the factory called `train`. Evaluations and files had the weights of training.
"""

from typing import Any

import pytest
import torch
from torch import nn, optim

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.run.weights.weight_update import OptimizerGroup, ScheduledOptimizer

BATCH, TARGETS = {"x": torch.linspace(-1, 1, 32).reshape(8, 4)}, torch.linspace(0, 1, 16).reshape(8, 2)


class TwoWeights(optim.SGD):
    """SGD whose weights for evaluations are half of those for training, and which counts how often it changes."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.trains, self.changes = False, 0

    def step(self, closure: Any = None) -> Any:
        assert self.trains, "it was not in train mode"
        return super().step()

    def train(self) -> None:
        self._turn(True, 2.0 if self.changes else 1.0)

    def eval(self) -> None:
        self._turn(False, 0.5)

    @torch.no_grad()
    def _turn(self, trains: bool, factor: float) -> None:
        if trains != self.trains:
            self.trains, self.changes = trains, self.changes + 1
            for each in self.param_groups[0]["params"]:
                each.mul_(factor)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_evaluations_and_the_model_have_the_weights_for_evaluations() -> None:
    model, plain = layers(), layers()
    graph, cluster = gp.capture(model, BATCH), gp.Cluster.preset("local:1")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, micro_batch=4)
    optimizer, built = TwoWeights(plain.parameters()), list[TwoWeights]()

    def make(own: Any) -> TwoWeights:
        built.append(TwoWeights(own))
        return built[-1]

    optimizer.train()
    with gp.Pipeline(plan, model, nn.functional.mse_loss, make) as pipeline:
        for _ in range(3):
            loss = nn.functional.mse_loss(plain(BATCH["x"]), TARGETS)
            loss.backward()
            assert pipeline.step(BATCH, TARGETS) == pytest.approx(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            optimizer.eval()
            with torch.no_grad():
                expected = nn.functional.mse_loss(plain(BATCH["x"]), TARGETS).item()
            assert pipeline.evaluate(BATCH, TARGETS)[0] == pytest.approx(expected)
            assert pipeline.evaluate_all([(BATCH, TARGETS)] * 3) == pytest.approx(expected)
            optimizer.train()
        assert built[0].changes == 3 * 2, "once for all evaluations between two steps"
        pipeline.step(BATCH, TARGETS)
        pipeline.sync_model()
        nn.functional.mse_loss(plain(BATCH["x"]), TARGETS).backward()
        optimizer.step()
    optimizer.eval()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_their_state_is_not_sharded_over_replicas() -> None:
    group: Any = OptimizerGroup(named=[*layers().named_parameters()], process_group=object())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="shard_optimizer: TwoWeights has other weights for evaluations"):
        ScheduledOptimizer.of(group, lambda own: TwoWeights(own), None)
