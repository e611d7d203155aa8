"""Optimizers whose state is not only tensors by parameter: lists of them, tensors among options, and more beside them.

SOAP and Kron could not be saved, D-Adaptation could not go on, and a wrapper of another optimizer was saved and then
called a corrupt checkpoint.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.run.checkpoint.nested_tensors import put_tensors, take_tensors

BATCH, TARGETS = {"x": torch.linspace(-1, 1, 32).reshape(8, 4)}, torch.linspace(0, 1, 16).reshape(8, 2)


class Kept(optim.SGD):
    """SGD whose steps depend on a list of tensors, on a tensor among its options, and on a number beside both."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.param_groups[0]["dtype"] = torch.float64
        self.taken = 0

    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        group["norm"] = group.get("norm", torch.zeros(1, dtype=group["dtype"])).add_(1.0)  # in place: not a number
        self.taken += 1
        for each in group["params"]:
            sides = self.state[each].setdefault("sides", [torch.zeros_like(each), [torch.ones(3), []]])
            sides[0].add_(each.grad)
            sides[1][0].mul_(0.9)
            each.data -= sides[0] * sides[1][0][0] * 0.1 / (group["norm"].item() + self.taken)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"taken": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.taken = state_dict["taken"]
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})


class Wrapper(optim.SGD):
    """Keeps slow weights beside the state, as Lookahead does."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"slow": {0: torch.zeros(2, 2)}}


def pipeline(make: Callable[[Sequence[nn.Parameter]], optim.Optimizer]) -> gp.Pipeline:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    graph, cluster = gp.capture(model, BATCH), gp.Cluster.preset("local:1")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, micro_batch=4)
    return gp.Pipeline(plan, model, nn.functional.mse_loss, make)


def test_all_that_an_optimizer_keeps_is_restored(tmp_path: Path) -> None:
    with pipeline(Kept) as running, gp.Checkpoints(running, tmp_path) as checkpoints:
        losses = [running.step(BATCH, TARGETS) for _ in range(3)]
        checkpoints.save()
        losses += [running.step(BATCH, TARGETS) for _ in range(3)]
    with pipeline(Kept) as resumed, gp.Checkpoints(resumed, tmp_path) as checkpoints:
        checkpoints.load()
        assert [resumed.step(BATCH, TARGETS) for _ in range(3)] == losses[3:]
        (state,) = {id(each.optimizer): each.optimizer for each in resumed.state.optimizers}.values()
        assert state.param_groups[0]["norm"].dtype == state.param_groups[0]["dtype"] == torch.float64
    assert len({*losses}) == 6


def test_what_a_checkpoint_cannot_hold_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    with pipeline(lambda own: Wrapper(own, lr=0.1)) as running, gp.Checkpoints(running, tmp_path) as checkpoints:
        running.step(BATCH, TARGETS)
        with pytest.raises(InvalidInput, match=r"Wrapper, slow, 0: a tensor of shape \[2, 2\] cannot be saved"):
            checkpoints.save()


def test_tensors_leave_lists_and_come_back() -> None:
    one, other = torch.ones(2), torch.zeros(1)
    value = {"sides": [one, [[], other, 3]], "plain": {"tensor": "no slot"}}
    without, slots = take_tensors(value["sides"], "sides")
    assert without == [{"tensor": "sides.0"}, [[], {"tensor": "sides.1.1"}, 3]]
    back, names = put_tensors({"sides": without, "plain": value["plain"]}, slots)
    assert names == {*slots} == {"sides.0", "sides.1.1"}
    assert back["sides"][0] is one
    assert back["sides"][1][1] is other
    assert back["plain"] == {"tensor": "no slot"}
