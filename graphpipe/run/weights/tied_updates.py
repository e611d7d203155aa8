"""Whether an optimizer ties the updates of numbers together, so that they cannot be spread over ranks.

    numbers       Adam, SGD, Lion          each number is updated by its own gradient
    parameters    Muon, Adafactor, LARS    the numbers of one parameter together
    everything    Prodigy, D-Adaptation    all parameters of an optimizer together: they share an estimated step size

A pipeline builds one optimizer for the parameters of each rank. It does what one optimizer of the whole model does if
each parameter is updated on its own, and, where ranks hold slices of parameters, if each number is.
"""

import copy
import random
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from graphpipe.graph import ParameterSlice
from graphpipe.run.device.without_compiler import without_compiler
from graphpipe.run.weights.sharded_tensors import own
from graphpipe.run.weights.weight_update import WeightUpdate
from graphpipe.run.weights.zero1 import local_optimizer
from graphpipe.user_frames import warn_user

Tie = Literal["numbers", "parameters", "everything"]
_REMEDY = "To avoid it, choose an optimizer that updates each"
_LENGTH = 4
"""Of a small parameter in each dimension."""
_COPIES = 2
"""Small parameters of a group with the same number of dimensions."""
_STEPS = 40
"""Updates after which an estimated step size has changed."""
_Change = Callable[[int, Tensor], Tensor]
"""Returns the gradient of a small parameter, by its number."""


def warn_of_tied_updates(update: WeightUpdate, trained: AbstractSet[str]) -> None:
    """Warn if this rank's optimizers do not do what one optimizer of the whole model does.

    Args:
        update: of this rank.
        trained: the names of all trainable parameters of the pipeline.
    """
    named = {name for group in update.groups for name, _ in group.named}
    by_kind: dict[type[Optimizer], list[tuple[Optimizer, list[str]]]] = {}
    for group, scheduled in zip(update.groups, update.optimizers, strict=False):  # Without an optimizer there are none.
        optimizer = local_optimizer(scheduled.optimizer)
        slices = [name for name, _ in group.named if ParameterSlice.parse(name) is not None]
        by_kind.setdefault(type(optimizer), []).append((optimizer, slices))
    for kind, optimizers in by_kind.items():
        several = len(optimizers) > 1 or not trained <= named
        sliced = next((name for _, slices in optimizers for name in slices), None)
        tie = tie_of(optimizers[0][0]) if several or sliced else None
        if tie == "everything" and several:
            warn_user(
                f"{kind.__name__} updates all of its parameters together, as optimizers do that estimate a step size. "
                "Each rank has an optimizer of its own parameters, so weights will differ from those of training "
                f"without a pipeline. {_REMEDY} parameter on its own, such as AdamW."
            )
        elif tie in ("everything", "parameters") and sliced is not None:
            warn_user(
                f"{kind.__name__} updates the numbers of a parameter together, and ranks hold slices such as "
                f"'{sliced}'. So weights will differ from those of training without a pipeline. {_REMEDY} number on "
                "its own, such as AdamW, or plan without tensor parallelism and without split operators."
            )


def tie_of(optimizer: Optimizer) -> Tie | None:
    """Return what an optimizer updates together; None if it cannot be tried.

    A copy of it updates small parameters, with other gradients for one of them or for the first number of each. The
    optimizer, its parameters and the state of random draws stay as they are.
    """
    try:
        with without_compiler(), _same_draws():
            plain, again = _updated(optimizer, _as_drawn), _updated(optimizer, _as_drawn)
            if not plain or not _equal(plain, again):
                return None
            last = len(plain) - 1
            other = _updated(optimizer, lambda at, gradient: 1 - 3 * gradient if at == last else gradient)
            if not _equal(plain[:-1], other[:-1]):
                return "everything"
            first = _updated(optimizer, lambda _, gradient: _with_another_first(gradient))
    except Exception:
        return None
    return (
        "numbers"
        if _equal([each.flatten()[1:] for each in plain], [each.flatten()[1:] for each in first])
        else "parameters"
    )


def _updated(optimizer: Optimizer, change: _Change) -> list[Tensor]:
    """Return small parameters after some updates by a copy of the optimizer."""
    torch.manual_seed(0)
    random.seed(0)
    small, trial = _copy(optimizer)
    for _ in range(_STEPS):
        gradients = [torch.randn_like(each) for each in small]
        state = torch.get_rng_state()
        for at, (parameter, gradient) in enumerate(zip(small, gradients, strict=True)):
            parameter.grad = change(at, gradient)
        type(optimizer).step(trial)  # A schedule may have replaced the method of the object.
        torch.set_rng_state(state)
    return [each.detach() for each in small]


def _copy(optimizer: Optimizer) -> tuple[list[nn.Parameter], Optimizer]:
    """Return small parameters, and a copy of the optimizer for them, with its state so far."""
    memo: dict[int, Any] = {}
    small: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        taken: defaultdict[int, int] = defaultdict(int)
        for parameter in group["params"]:
            used = taken[parameter.ndim] < _COPIES
            taken[parameter.ndim] += 1
            memo[id(parameter)] = tiny = nn.Parameter(_corner(own(parameter.detach())).clone())
            small += [tiny] if used else []
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    memo[id(value)] = _corner(own(value)).clone()
    trial = object.__new__(type(optimizer))
    trial.__dict__.update(copy.deepcopy(vars(optimizer), memo))
    if len(small) == 1:
        small.append(nn.Parameter(small[0].detach().clone()))
        trial.param_groups[0]["params"].append(small[-1])
    return small, trial


def _corner(tensor: Tensor) -> Tensor:
    return tensor[tuple(slice(_LENGTH) for _ in tensor.shape)]


def _as_drawn(_: int, gradient: Tensor) -> Tensor:
    return gradient


def _with_another_first(gradient: Tensor) -> Tensor:
    changed = gradient.clone()
    changed.view(-1)[0] = 1 - 3 * gradient.view(-1)[0]
    return changed


def _equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@contextmanager
def _same_draws() -> Generator[None]:
    """Keep the state of random draws."""
    state = random.getstate()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield
    random.setstate(state)
