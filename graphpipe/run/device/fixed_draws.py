"""Random numbers and batch statistics that do not depend on how a mini-batch is divided, while a step is checked.

Every draw of torch's gives the same number to all elements: masks of dropout keep everything, noise is half a standard
deviation. A drawn order is the reverse one, because the given order would hide that samples change places. Batch norm
uses the statistics that it holds. All of this holds for a plain step and for a pipeline alike, because it acts on
torch's operators, whoever calls them. In double precision, what asks for single precision gets double.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from graphpipe.model.torch_private import DispatchMode, Operator, is_random, written_arguments

_LOW = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32))
"""What is computed in double precision instead."""
STATISTICS = "batch norm"
"""Among the draws: batch norm used the statistics that it holds."""
_NOISE = 0.5
"""Of a standard normal number. Zero would hide what noise is multiplied by."""


class FixedDraws(DispatchMode):
    """While inside, torch's operators draw fixed numbers.

    Args:
        double: compute in double precision.
        norms: let batch norm use the statistics that it holds.
        reseeded: let a forward draw real numbers where it has just seeded a generator itself. They are the same in each
            call, so plain PyTorch gives each sample those of its place in the mini-batch.
    """

    def __init__(self, *, double: bool, norms: bool = True, reseeded: bool = False) -> None:
        super().__init__()
        self.drawn: dict[str, None] = {}
        """What was replaced, by the name of the operator."""
        self._double, self._norms, self._reseeded = double, norms, reseeded

    def __torch_dispatch__(
        self, func: Operator, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator."""
        if not self._double and _is_plain(func):
            return func(*args, **(kwargs or {}))
        named: dict[str, Any] = {**kwargs} if kwargs else {}
        if self._double:
            if named.get("dtype") in _LOW:
                named["dtype"] = doubled(named["dtype"])
            args = _promoted(func, args)
        name = _name(func)
        if self._norms and name in _STATISTICS:
            return self._normed(name, func, [*args], named)
        if name in _ORDERS and _is_constant(args[0]):
            return _reversed_order(name, func, args, named)
        if not is_random(func) or _attends_without_dropout(name, args):
            return func(*args, **named)
        if self._reseeded and _just_seeded(generator := named.get("generator")):
            if generator is not None:
                named["generator"] = generator.clone_state()  # it may be the module's, and stays as it is
            return func(*args, **named)
        self.drawn[name] = None
        fixed = _FIXED.get(name)
        return func(*args, **named) if fixed is None else fixed(func, args, named)

    def _normed(self, name: str, func: Operator, args: list[Any], named: Mapping[str, Any]) -> Any:
        # native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps), and its backward
        # (gradient, input, weight, mean, variance, saved mean, saved deviation, training, eps, mask).
        backward = name.endswith("backward")
        given, at, training = (args[1], 3, 7) if backward else (args[0], 3, 5)
        if not args[training] or (given.shape[0] == 1 and args[at] is None):  # as instance norm calls it: exact
            return func(*args, **named)
        self.drawn[STATISTICS] = None
        args[training] = False
        if args[at] is None:
            args[at], args[at + 1] = given.new_zeros(given.shape[1]), given.new_ones(given.shape[1])
        return func(*args, **named)


def _name(func: Operator) -> str:
    return str(func).split(".")[1]  # of aten.bernoulli_.float


@cache
def _is_plain(func: Operator) -> bool:
    # Most operators neither draw, nor sort, nor use statistics. To find that out takes longer than to run one.
    return not is_random(func) and _name(func) not in _STATISTICS | _ORDERS


UNLIKELY = 0x3A7D15C9E2B4
"""A seed of torch's generator that no forward is expected to choose."""


def _just_seeded(generator: torch.Generator | None) -> bool:
    # Whether nothing was drawn from a generator since it was seeded, unless it is torch's own with our seed.
    used = torch.default_generator if generator is None else generator
    if generator is None and used.initial_seed() == UNLIKELY:
        return False
    again = torch.Generator(used.device)
    again.manual_seed(used.initial_seed())
    return torch.equal(again.get_state(), used.get_state())


_STATISTICS = frozenset(("native_batch_norm", "native_batch_norm_backward"))


_DROPOUT = {
    "_scaled_dot_product_flash_attention_for_cpu": 3,
    "_scaled_dot_product_flash_attention": 3,
    "_scaled_dot_product_efficient_attention": 5,
    "_scaled_dot_product_cudnn_attention": 5,
}
"""The position of the probability among the arguments of an attention."""


def _attends_without_dropout(name: str, args: Sequence[Any]) -> bool:
    at = _DROPOUT.get(name)
    return at is not None and not (len(args) > at and args[at])


def doubled(dtype: torch.dtype) -> torch.dtype:
    """Return the type in double precision that holds these real or complex numbers; of others, the type itself."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _promoted(func: Operator, args: Sequence[Any]) -> Sequence[Any]:
    # Operands that stayed in single precision, such as constants in closures, meet those in double precision.
    found = {each.dtype for each in _tensors(args)}
    if found.isdisjoint((torch.float64, torch.complex128)) or found.isdisjoint(_LOW):
        return args
    written = {id(each) for each in written_arguments(func, args, {})}

    def promoted(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(doubled(value.dtype)) if value.dtype in _LOW and id(value) not in written else value
        return [promoted(each) for each in value] if isinstance(value, list | tuple) else value

    return [promoted(each) for each in args]


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for each in args:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += [inner for inner in each if isinstance(inner, Tensor)]
    return found


_ORDERS = frozenset(("sort", "topk"))
"""What sorts, also for `argsort`."""


def _is_constant(tensor: Tensor) -> bool:
    # As drawn numbers are here, whose order in a run is another one in each call.
    return tensor.is_floating_point() and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())


def _reversed_order(name: str, func: Operator, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    # sort(input, dim, descending), sort.stable(input, *, stable, dim, descending), topk(input, count, dim, ...)
    values, indices = func(*args, **named)
    dim = _argument(args, named, 2 if name == "topk" else 1, "dim", -1)
    last = args[0].shape[dim] - 1
    order = last - torch.arange(indices.shape[dim], device=indices.device)
    shape = [1] * indices.dim()
    shape[dim] = len(order)
    return values, order.reshape(shape).expand(indices.shape).contiguous()


_Fixed = Callable[[Operator, Sequence[Any], dict[str, Any]], Any]


def _argument(args: Sequence[Any], named: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    return args[position] if len(args) > position else named.get(name, default)


def _in_place(number: Callable[[Sequence[Any], Mapping[str, Any]], Any]) -> _Fixed:
    def fixed(func: Operator, args: Sequence[Any], named: dict[str, Any]) -> Any:
        del func
        found = number(args, named)
        return args[0].copy_(found) if isinstance(found, Tensor) else args[0].fill_(found)

    return fixed


def _then_fill(number: Callable[[Sequence[Any], Mapping[str, Any]], Any]) -> _Fixed:
    # The operator makes a tensor of the right shape, dtype and device.
    def fixed(func: Operator, args: Sequence[Any], named: dict[str, Any]) -> Any:
        found = number(args, named)
        made = func(*args, **named)
        return made.copy_(found) if isinstance(found, Tensor) else made.fill_(found)

    return fixed


def _mask(probability: Any) -> Any:
    return (probability >= 0.5) if isinstance(probability, Tensor) else float(probability >= 0.5)


def _middle(args: Sequence[Any], first: int) -> float:
    # Of [low, high) or [0, high) in randint and randint_like.
    numbers = [each for each in args[first:] if isinstance(each, int) and not isinstance(each, bool)]
    low, high = (numbers[0], numbers[1]) if len(numbers) > 1 else (0, numbers[0])
    return (low + high - 1) // 2


def _normal(args: Sequence[Any], named: Mapping[str, Any], first: int) -> Any:
    mean, deviation = _argument(args, named, first, "mean", 0.0), _argument(args, named, first + 1, "std", 1.0)
    return mean + _NOISE * deviation


def _most_likely(func: Operator, args: Sequence[Any], named: dict[str, Any]) -> Any:
    del func, named
    weights, count = args[0], args[1]
    if weights.shape[-1] < count:  # with replacement
        return weights.argmax(-1, keepdim=True).expand(*weights.shape[:-1], count).contiguous()
    return weights.sort(dim=-1, descending=True, stable=True).indices[..., :count].flip(-1)


def _without_noise(func: Operator, args: Sequence[Any], named: dict[str, Any]) -> Any:
    # rrelu_with_noise(input, noise, lower, upper, training), whose backward multiplies by the noise.
    given, noise = args[:2]
    noise.copy_(torch.where(given > 0, 1.0, (args[2] + args[3]) / 2))
    return func(given, noise, *args[2:4], False, *args[5:], **named)


_DRAWN_INTO: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], Any]] = {
    "bernoulli": lambda args, named: _mask(_argument(args, named, 1, "p", 0.5)),
    "uniform": lambda args, named: (_argument(args, named, 1, "from", 0.0) + _argument(args, named, 2, "to", 1.0)) / 2,
    "normal": lambda args, named: _normal(args, named, 1),
    "exponential": lambda args, named: 1 / _argument(args, named, 1, "lambd", 1.0),
    "random": lambda _, __: 1,
    "cauchy": lambda args, named: _argument(args, named, 1, "median", 0.0),
    "geometric": lambda _, __: 1,
    "log_normal": lambda args, named: math.exp(_argument(args, named, 1, "mean", 1.0)),
}
"""The number that each draws into a tensor, in place, or, as a captured graph does, into a copy."""
_FIXED: dict[str, _Fixed] = {
    **{f"{name}_": _in_place(number) for name, number in _DRAWN_INTO.items()},
    **{name: _then_fill(number) for name, number in _DRAWN_INTO.items()},
    "normal_functional": _then_fill(_DRAWN_INTO["normal"]),
    "bernoulli": _then_fill(
        lambda args, named: _mask(args[0] if len(args) < 2 or args[1] is None else args[1]),
    ),
    "normal": _then_fill(lambda args, named: _normal(args, named, 0)),
    "rand": _then_fill(lambda _, __: 0.5),
    "rand_like": _then_fill(lambda _, __: 0.5),
    "randn": _then_fill(lambda _, __: _NOISE),
    "randn_like": _then_fill(lambda _, __: _NOISE),
    "randint": _then_fill(lambda args, _: _middle(args, 0)),
    "randint_like": _then_fill(lambda args, _: _middle(args, 1)),
    "randperm": lambda func, args, named: func(*args, **named).copy_(torch.arange(args[0]).flip(0)),
    "_standard_gamma": _then_fill(lambda args, _: args[0]),
    "_sample_dirichlet": _then_fill(lambda args, _: args[0] / args[0].sum(-1, keepdim=True)),
    "binomial": _then_fill(lambda args, _: (args[0] * args[1]).floor()),
    "poisson": _then_fill(lambda args, _: args[0].floor()),
    "multinomial": _most_likely,
    "native_dropout": lambda func, args, named: func(args[0], 0.0, *args[2:], **named),
    "rrelu_with_noise": _without_noise,
    "rrelu_with_noise_": _without_noise,
}
