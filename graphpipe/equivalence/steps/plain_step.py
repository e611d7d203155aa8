"""A step of a few samples in plain PyTorch, as the user's own training loop does it."""

import gc
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from graphpipe.equivalence.steps.check_subject import CheckSubject, labels, seed_all
from graphpipe.equivalence.steps.own_values import own_values
from graphpipe.equivalence.steps.reached_leaves import reached_leaves
from graphpipe.equivalence.steps.relative_difference import relative_difference
from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.equivalence.steps.watched_values import joined, watched_values
from graphpipe.model.torch_private import flatten
from graphpipe.run.device.fixed_draws import FixedDraws
from graphpipe.run.stage.tensor_tree import leaves


class _Trained(NamedTuple):
    loss: float
    outputs: dict[str, Tensor]
    read_by_loss: set[int]
    """The identities of the leaves that the loss reads beside the outputs."""
    others: dict[str, "tuple[ref[Tensor], Tensor | None]"]
    """The trainable tensors that are not the model's, with their gradients."""
    seconds: float


def plain_step(subject: CheckSubject) -> StepRecord:
    """Return what plain PyTorch computes in one step of the samples."""
    given, draws = subject.in_precision(), FixedDraws(double=subject.double)
    model = given.model
    with own_values(given.modules, given.tensors, double=given.double), without_compiled(), watching(given) as values:
        if given.shaken:
            _shake(model)
        before = changing(model)
        seed_all(given.seed)
        if given.again:
            _train(given, draws)
            values.clear()
            put_back(model, before)
            seed_all(given.seed)
        trained = _train(given, draws)
        record = StepRecord(
            loss=trained.loss,
            outputs=trained.outputs,
            gradients={name: each.grad for name, each in model.named_parameters() if each.requires_grad},
            others=_lasting(trained),
            buffers=changed(before[1], dict(model.named_buffers())),
            parameters=changed(before[0], dict(model.named_parameters())),
            read_by_loss=tuple(name for name, each in model.named_parameters() if id(each) in trained.read_by_loss),
            values=joined(values),
            drawn=tuple(draws.drawn),
            seconds=trained.seconds,
        )
        if given.again or given.watched:
            return record
        put_back(model, before)
        return replace(record, remembers=_remembers(given, trained))


def _remembers(given: CheckSubject, trained: _Trained) -> bool:
    seed_all(given.seed)
    with FixedDraws(double=given.double):
        output = given.forward()
        loss = as_mean(given.loss_fn(output, given.targets)).item()
    outputs = outputs_of(output, len(next(iter(given.inputs.values()))))
    pairs = [(each, outputs[name]) for name, each in trained.outputs.items() if name in outputs]
    pairs.append((torch.tensor(trained.loss), torch.tensor(loss)))
    return any(bool(relative_difference(one, other)) for one, other in pairs)


def _train(given: CheckSubject, draws: FixedDraws) -> _Trained:
    start = time.perf_counter()
    with draws:
        output = given.forward()
        loss = as_mean(given.loss_fn(output, given.targets))
        others = _others(given.model, given.loss_fn, loss)
        direct = {id(each) for each in reached_leaves([loss], leaves(output))}
        held = {name: leaf.grad for name, leaf in others.items()}
        for leaf in others.values():
            leaf.grad = None
        loss.backward()
    seconds = time.perf_counter() - start
    gradients = {name: (ref(leaf), leaf.grad) for name, leaf in others.items()}
    for name, leaf in others.items():
        leaf.grad = held[name]
    samples = len(next(iter(given.inputs.values())))
    return _Trained(loss.detach().item(), outputs_of(output, samples), direct, gradients, seconds)


def _lasting(trained: _Trained) -> dict[str, Tensor | None]:
    # A leaf that the forward made, for gradients of its inputs (`x.detach().requires_grad_()`), ends with the step.
    # Nobody trains it.
    if trained.others:
        gc.collect()  # Graphs of gradients of gradients are in cycles.
    return {name: gradient for name, (leaf, gradient) in trained.others.items() if leaf() is not None}


def _shake(model: nn.Module) -> None:
    draw = torch.Generator().manual_seed(1)
    for each in model.parameters():
        if each.is_floating_point():
            signs = torch.randint(2, each.shape, generator=draw).to(each) * 2 - 1
            each.data.mul_(1 + signs * torch.finfo(each.dtype).eps)


def as_mean(value: Any) -> Tensor:
    """Return the loss of some samples, given what a loss function returns: a mean, or a sum and its weight."""
    if isinstance(value, tuple | list):
        total, weight = value
        return total / weight
    return value


def _others(model: nn.Module, loss_fn: object, loss: Tensor) -> dict[str, Tensor]:
    # The trainable tensors that the loss reaches and that are not the model's.
    known, names = {id(each) for each in model.parameters()}, labels(loss_fn)
    return {other_name(leaf, names): leaf for leaf in reached_leaves([loss]) if id(leaf) not in known}


def other_name(leaf: Tensor, names: Mapping[int, str]) -> str:
    """Return the name of a trainable tensor that is not the model's."""
    name = names.get(id(leaf))
    return f"'{name}' of loss_fn" if name else f"a tensor of shape {tuple(leaf.shape)} outside the model ({id(leaf)})"


def outputs_of(output: Any, samples: int) -> dict[str, Tensor]:
    """Return the parts of a model's output that have a row for each sample, by position."""
    parts = enumerate(flatten(output)[0])
    return {
        str(n): each.detach().clone()
        for n, each in parts
        if isinstance(each, Tensor) and each.dim() and len(each) == samples
    }


def put_back(model: nn.Module, before: "State") -> None:
    """Give a model's parameters and buffers the values again that `changing` returned, and remove gradients."""
    parameters, buffers = before
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.grad = None
            _fill(each, parameters[name])
        for name, each in model.named_buffers():
            if name in buffers:
                _fill(each, buffers[name])


def _fill(tensor: Tensor, values: Tensor) -> None:
    if tensor.shape == values.shape:
        tensor.copy_(values)
    else:
        tensor.data = values.clone()


State = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Copies of parameters and of buffers, by name."""


def changing(model: nn.Module) -> State:
    """Return copies of a model's parameters and buffers, before a step may change them."""
    parameters = {name: each.detach().clone() for name, each in model.named_parameters()}
    return parameters, {name: each.detach().clone() for name, each in model.named_buffers()}


def changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that have changed, by name."""
    return {
        name: each.detach().clone()
        for name, each in now.items()
        if name not in before or each.shape != before[name].shape or not _equal(each.detach(), before[name])
    }


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


@contextmanager
def watching(subject: CheckSubject) -> Generator[dict[str, list[Tensor]]]:
    """While inside, note what submodules return, if the subject is watched."""
    paths = [path for path, _ in subject.model.named_modules() if path] if subject.watched else []
    with watched_values(subject.model, paths) as values:
        yield values


def without_compiled() -> Any:
    """Return a context in which compiled modules run as they are written."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
