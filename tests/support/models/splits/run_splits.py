"""Modules whose backward is split, and plans whose schedules split backwards."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from run_models import BATCH, STAGES, cross_entropy, fan, fan_batch
from run_plans import StageLine, hand_split, plan_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphpipe.costs import CostTable, Curve, OpCost
from graphpipe.plans import Plan
from graphpipe.run import Pipeline, PipelineOptions


class Wrap(nn.Module):
    """Any function of modules, as a module."""

    def __init__(self, call: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(self, *inputs)


class CalledTwice(nn.Module):
    """Calls one layer twice, so that its parameters have two uses in a backward."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Scale(torch.autograd.Function):
    """A function with its own backward that takes a parameter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


@dataclass
class Case:
    """A module, its inputs, and which of them come from an earlier stage."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    received: tuple[bool, ...] = (True,)


def cases() -> dict[str, Case]:
    """Modules that can be split."""
    torch.manual_seed(0)
    x, sequence, tokens = torch.randn(6, 8), torch.randn(3, 5, 8), torch.randint(0, 7, (6, 3))
    tied = nn.Linear(8, 8)
    frozen = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    frozen[0].requires_grad_(False)
    inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.3))
    return {
        "layers": Case(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)), (x,)),
        "a view as output": Case(nn.Linear(8, 4), (sequence,)),
        "two views as outputs": Case(Wrap(lambda m, x: m.a(x).chunk(2, -1), a=nn.Linear(8, 4)), (sequence,)),
        "transformer": Case(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True), (sequence,)),
        "convolutions": Case(
            nn.Sequential(nn.Conv1d(5, 4, 3), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(24, 2)),
            (sequence,),
        ),
        "an output nobody uses": Case(Wrap(lambda m, x: (m.a(x), m.b(x)), a=nn.Linear(8, 2), b=nn.Linear(8, 2)), (x,)),
        "a value passed on": Case(Wrap(lambda m, x: (x, m.a(x)), a=nn.Linear(8, 2)), (x,)),
        "parameters beside what is received": Case(
            Wrap(lambda m, x, t: m.a(x) + m.e(t).mean(1), a=nn.Linear(8, 4), e=nn.Embedding(7, 4)),
            (x, tokens),
            (True, False),
        ),
        "an output of own inputs alone": Case(
            Wrap(lambda m, x, y: (m.a(x), m.b(y)), a=nn.Linear(8, 4), b=nn.Linear(8, 4)), (x, x * 2), (True, False)
        ),
        "a source": Case(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), (x,), (False,)),
        "a tied weight": Case(Wrap(lambda m, x: m.a(torch.tanh(m.a(x) * 2)), a=nn.Linear(8, 8, bias=False)), (x,)),
        "a frozen part": Case(frozen, (x,)),
        "no parameters": Case(nn.Sequential(nn.Tanh(), nn.Softmax(-1)), (x,)),
        "a received value unused": Case(Wrap(lambda m, x, y: m.a(y), a=tied), (x, x * 2), (True, True)),
        "a checkpoint": Case(
            Wrap(lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=False)), a=inner, b=nn.Linear(8, 2)), (x,)
        ),
        "a parameter taken twice by one operation": Case(
            Wrap(lambda m, x: torch.addcmul(x, m.p, m.p), p=nn.Parameter(torch.randn(8))), (x,)
        ),
    }


def whole_cases() -> dict[str, Case]:
    """Modules that cannot be split."""
    torch.manual_seed(0)
    x, sequence = torch.randn(6, 8), torch.randn(3, 4, 9)
    weight = nn.Parameter(torch.randn(8, 8))
    return {
        "several operations use one parameter": Case(
            Wrap(lambda m, x: m.a(torch.tanh(m.a(x))), a=nn.Conv1d(4, 4, 3, padding=1)), (sequence,)
        ),
        "several operations use one parameter ": Case(
            Wrap(lambda m, x: torch.tanh(nn.functional.linear(x, m.w)) @ m.w, w=weight), (x,)
        ),
        "ScaleBackward": Case(
            Wrap(lambda m, x: m.a(Scale.apply(x, m.w)), a=nn.Linear(8, 2), w=nn.Parameter(torch.randn(8))), (x,)
        ),
    }


def in_halves(plan: Plan, schedule: str) -> Plan:
    """Return the plan with a schedule that splits backwards; every operator takes a second for everything."""
    second = Curve(lines=((1.0, 0.0),))
    rows = tuple(
        OpCost(
            op=op.name,
            device_type="cpu",
            forward=second,
            input_gradient=second,
            weight_gradient=second,
            source="analytic",
        )
        for op in plan.graph.ops
    )
    return replace(plan, costs=CostTable(graph_fingerprint=plan.graph.fingerprint, rows=rows), schedule=schedule)


def fan_pipeline(cut: str | list[StageLine], schedule: str, dropout: float = 0.3, **options: Any) -> Pipeline:
    """Return a pipeline of `fan` whose schedule may split backwards."""
    model, (inputs, _) = fan(dropout), fan_batch()
    plan = in_halves(plan_of(model, inputs, STAGES[cut] if isinstance(cut, str) else cut, BATCH), schedule)
    optimizer = options.pop("optimizer", None)
    programs = hand_split(model, plan, inputs)
    return Pipeline(plan, programs, cross_entropy, optimizer, options=PipelineOptions(debug=True, **options))


def losses_and_gradients(cut: str, schedule: str) -> dict[str, Any]:
    """Train two steps; return the losses, the last gradients, and how the backwards were done."""
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.05)  # noqa: E731
    with fan_pipeline(cut, schedule, optimizer=adamw) as pipeline:
        losses = [pipeline.step(*fan_batch(seed=step)) for step in range(2)]
        gradients = {name: gradient.clone() for name, gradient in pipeline.gradients().items() if gradient is not None}
        return {"losses": losses, "gradients": gradients, "backwards": pipeline.backwards()}
