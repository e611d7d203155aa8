"""Random modules: a graph of 5 to 14 operations with reuse, ties and dictionaries, and perhaps something unusual.

What is unusual was reported of pipelines: a backward written by hand, a weight that the forward changes, a statistic
over the batch, a loss that is no mean. `KINDS` has them. Whether a pipeline trains such a model as plain PyTorch does
is not known beforehand: `bench.equivalence.equivalence` measures it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDE, CLASSES = 8, 3


class Reverse(torch.autograd.Function):
    """Reverses the gradient, as domain-adversarial training does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the values."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the reversed gradient."""
        return -0.7 * gradients[0]


class Sign(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the signs."""
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient as if there were no sign."""
        return gradients[0]


class Injected(torch.autograd.Function):
    """Adds a balance loss in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        """Return the values."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient, and one for the loss."""
        return gradients[0], torch.ones((), dtype=gradients[0].dtype)


class Unusual(nn.Module):
    """A layer whose forward does something that its operators do not show."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer, self.slow = kind, nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE).requires_grad_(False)
        self.gate = nn.Linear(WIDE, WIDE)
        self.register_buffer("mean", torch.ones(WIDE))

    def forward(self, x: Tensor) -> Tensor:
        """Return as many rows."""
        return FORWARDS[self.kind](self, x)


def _hooked(m: Unusual, x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(_half)
    return m.layer(x)


def _half(gradient: Tensor) -> Tensor:
    return 0.5 * gradient


def _momentum(m: Unusual, x: Tensor) -> Tensor:
    with torch.no_grad():
        for own, other in zip(m.slow.parameters(), m.layer.parameters(), strict=True):
            own.lerp_(other, 0.1)
    return m.layer(x) + m.slow(x)


def _clamped(m: Unusual, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.layer.weight.clamp_(-0.1, 0.1)
    return m.layer(x)


def _replaced(m: Unusual, x: Tensor) -> Tensor:
    m.slow.weight.data = 0.9 * m.slow.weight.data + 0.1 * m.layer.weight.data
    return m.layer(x) + m.slow(x)


def _averaged(m: Unusual, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.get_buffer("mean").mul_(0.9).add_(0.1 * x.mean(0))
    return m.layer(x) * m.mean


def _counted(m: Unusual, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.get_buffer("mean").add_(1.0)
    return m.layer(x)


def _centred(m: Unusual, x: Tensor) -> Tensor:
    found = m.layer(x)
    return found - found.mean(0, keepdim=True)


def _scaled(m: Unusual, x: Tensor) -> Tensor:
    found = m.layer(x)
    return found / (found.std(0, keepdim=True) + 1e-2)


def _injected(m: Unusual, x: Tensor) -> Tensor:
    found = m.layer(x)
    return Injected.apply(found, found.softmax(-1).mean(0).square().sum())


def _drawn(m: Unusual, x: Tensor) -> Tensor:
    return m.layer(x) * (1 + 0.1 * random.random())


FORWARDS: dict[str, Callable[[Unusual, Tensor], Tensor]] = {
    "reversed gradient": lambda m, x: m.layer(Reverse.apply(x)),
    "straight through": lambda m, x: m.layer(Sign.apply(x)) + x,
    "hook": _hooked,
    "momentum": _momentum,
    "clamped weight": _clamped,
    "replaced data": _replaced,
    "moving mean": _averaged,
    "counter": _counted,
    "centred": _centred,
    "scaled": _scaled,
    "injected gradient": _injected,
    "python's random": _drawn,
    "detached": lambda m, x: m.layer(x).detach() + x,
    "gate without gradient": lambda m, x: x + m.layer(x) * (m.gate(x) > 0),
    "chosen by argmax": lambda m, x: x + F.one_hot(m.gate(x).argmax(-1), WIDE).to(x) * m.layer(x),
    "no_grad": lambda m, x: x + _without_gradient(m, x),
    "checkpoint": lambda m, x: _recomputed(m, x, reentrant=False),
    "reentrant checkpoint": lambda m, x: _recomputed(m, x, reentrant=True),
}


def _recomputed(m: Unusual, x: Tensor, *, reentrant: bool) -> Tensor:
    found: Any = checkpoint(m.layer, x, use_reentrant=reentrant)
    return found


def _without_gradient(m: Unusual, x: Tensor) -> Tensor:
    with torch.no_grad():
        return m.layer(x)


class Pair(nn.Module):
    """Two layers, whose results are returned in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return both."""
        return {"left": self.left(x), "right": torch.tanh(self.right(x))}


class Mixed(nn.Module):
    """Attention of the two halves of a sample to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDE // 2, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many rows."""
        halves = x.unflatten(1, (2, WIDE // 2))
        return self.attention(halves, halves, halves, need_weights=False)[0].flatten(1)


class Recurrent(nn.Module):
    """A recurrent layer over the two halves of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(WIDE // 2, WIDE // 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many rows."""
        return self.layer(x.unflatten(1, (2, WIDE // 2)))[0].flatten(1)


class Convolved(nn.Module):
    """A convolution over the elements of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many rows."""
        return self.layer(x[:, None]).mean(1)


PARTS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Linear(WIDE, WIDE),
    lambda: nn.Linear(WIDE, WIDE, bias=False),
    lambda: nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.GELU(), nn.Linear(2 * WIDE, WIDE)),
    lambda: nn.LayerNorm(WIDE),
    lambda: nn.GroupNorm(2, WIDE),
    nn.Tanh,
    nn.SiLU,
    Pair,
    Mixed,
    Recurrent,
    Convolved,
    lambda: nn.Linear(WIDE, WIDE).requires_grad_(False),
)
JOINS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda a, b: a + b,
    lambda a, b: a * torch.sigmoid(b),
    lambda a, b: (a - b).abs() + a,
    lambda a, b: torch.cat([a[:, : WIDE // 2], b[:, WIDE // 2 :]], 1),
    lambda a, b: torch.softmax(a, -1) * b,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a random model: which part, applied to which earlier values, joined how."""

    part: int
    reads: tuple[int, ...]
    join: int


class RandomModel(nn.Module):
    """A graph of operations that a generator has drawn.

    Args:
        draw: the generator.
        kind: of an unusual layer; empty for none.
        in_root: whether the unusual forward is that of the model itself.
    """

    def __init__(self, draw: random.Random, kind: str, *, in_root: bool) -> None:
        super().__init__()
        count = draw.randint(5, 14)
        self.parts = nn.ModuleList(draw.choice(PARTS)() for _ in range(count))
        self.scale = nn.Parameter(torch.ones(WIDE))
        self.unusual = Unusual(kind) if kind in FORWARDS else None
        self.in_root, self.place = in_root, draw.randrange(count)
        self.steps = [
            Step(
                part=draw.randrange(number) if number and draw.random() < 0.15 else number,  # some parts are used twice
                reads=tuple(draw.randrange(max(0, number - 3), number + 1) for _ in range(draw.choice((1, 1, 2)))),
                join=draw.randrange(len(JOINS)),
            )
            for number in range(count)
        ]
        self.form, self.last = draw.choice(("tensor", "tuple", "dict")), nn.Linear(WIDE, CLASSES)
        linear = [each for each in self.parts if isinstance(each, nn.Linear)]
        if len(linear) > 1 and draw.random() < 0.3:
            linear[-1].weight = linear[0].weight  # tied

    def forward(self, x: Tensor) -> Any:
        """Return the scores of the classes."""
        values, used = [x], set[int]()
        for number, step in enumerate(self.steps):
            value = values[step.reads[0]]
            if len(step.reads) > 1:
                value = JOINS[step.join](value, values[step.reads[1]])
            used |= {*step.reads}
            found = self.parts[step.part](value)
            if isinstance(found, dict):
                found = found["left"] * found["right"]
            if self.unusual is not None and number == self.place:
                found = FORWARDS[self.unusual.kind](self.unusual, found) if self.in_root else self.unusual(found)
            values.append(found)
        ends = [value for number, value in enumerate(values) if number not in used]
        scores = self.last(torch.stack(ends).mean(0) * self.scale)
        return {"scores": scores} if self.form == "dict" else (scores, ends[-1]) if self.form == "tuple" else scores


def scores_of(output: Any) -> Tensor:
    """Return the scores in an output of a `RandomModel`."""
    return output["scores"] if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output


def _dice(output: Any, target: Tensor) -> Tensor:
    p = scores_of(output).softmax(-1)
    y = F.one_hot(target, CLASSES).to(p)
    return 1 - 2 * (p * y).sum() / (p.sum() + y.sum() + (p * p).sum())


def _ignored(output: Any, target: Tensor) -> Tensor:
    scores = scores_of(output)
    return F.cross_entropy(scores, target, ignore_index=0) if (target > 0).any() else 0 * scores.sum()


def _with_parameter() -> Callable[[Any, Tensor], Tensor]:
    weight = nn.Parameter(torch.zeros(()))
    return lambda o, t: F.cross_entropy(scores_of(o), t) * torch.exp(-weight) + weight


LOSSES: dict[str, Callable[[], Callable[[Any, Tensor], Tensor]]] = {
    "loss: sum": lambda: lambda o, t: F.cross_entropy(scores_of(o), t, reduction="sum"),
    "loss: root": lambda: lambda o, t: F.cross_entropy(scores_of(o), t).sqrt(),
    "loss: ignored labels": lambda: _ignored,
    "loss: class weights": lambda: (
        lambda o, t: F.cross_entropy(scores_of(o), t, weight=torch.tensor([1.0, 4.0, 9.0]).to(scores_of(o)))
    ),
    "loss: dice": lambda: _dice,
    "loss: parameter": _with_parameter,
}
KINDS = ("", *FORWARDS, *LOSSES)


def mean_loss(output: Any, target: Tensor) -> Tensor:
    """Return a mean over samples."""
    return F.cross_entropy(scores_of(output), target)
