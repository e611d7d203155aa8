"""Recurrent layers on fake tensors, counted as a GPU computes them.

On a GPU, cuDNN computes all layers and steps of an LSTM, a GRU or a plain recurrent layer by one call. On a CPU,
torch hides the work of an LSTM in one operator, and takes a GRU apart into a dozen operators for each step, which
takes seconds on fake tensors. Here such a layer runs a few operators instead, which have the same results' shapes,
read the same values, and keep as much for the backward as cuDNN must: the gates and states of all steps. Its work
is that of the equations:

    for each layer and direction    1 product of the inputs of all steps with W_ih
        for each step               1 product of the state with W_hh (and one with W_hr if the layer projects it)
                                    1 kernel for the gates

so that n samples of s steps take 2 n s FLOPs for each element of a weight matrix.

References:
    Appleyard, Kociský, Blunsom: Optimizing performance of recurrent neural networks on GPUs. arXiv:1604.01946 (2016).
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from graphpipe.model.torch_private import FakeTensor

_LAYERS: tuple[Any, ...] = (nn.LSTM, nn.GRU, nn.RNN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """The work of the forward of a recurrent layer."""

    flops: float
    traffic_bytes: float
    """Inputs, gates and states, without weights."""
    kernels: int
    step_kernels: int
    """Those of single steps, which `kernels` counts too."""


@contextmanager
def recurrent_layers_at_a_glance(
    count: Callable[[Recurrence], object] = lambda work: None,
    uncounted: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Generator[None]:
    """While inside, a recurrent layer on fake tensors runs the few operators that stand for it.

    Args:
        count: takes the work of each call.
        uncounted: a context for the operators of a call.
    """
    forwards = [layer.forward for layer in _LAYERS]

    def stand_in(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(layer: nn.RNNBase, input: Any, hx: Any = None) -> Any:
            with uncounted():
                result = _results(layer, input, hx) if isinstance(input, FakeTensor) else forward(layer, input, hx)
            count(_work(layer, input))
            return result

        return run

    try:
        for layer, forward in zip(_LAYERS, forwards, strict=True):
            layer.forward = stand_in(forward)
        yield
    finally:
        for layer, forward in zip(_LAYERS, forwards, strict=True):
            layer.forward = forward


def _work(layer: nn.RNNBase, values: Tensor | PackedSequence) -> Recurrence:
    matrices = [weight for weight in layer.parameters() if weight.dim() == 2]
    if isinstance(values, PackedSequence):
        values, steps = values.data, values.batch_sizes.numel()
    else:
        steps = values.shape[1 if layer.batch_first and values.dim() == 3 else 0]
    rows = values.numel() // values.shape[-1]
    step_kernels = steps * len(matrices)
    return Recurrence(
        flops=2 * rows * sum(matrix.numel() for matrix in matrices),
        # Every product reads its rows and writes its gates, which the kernel of the gates reads again.
        traffic_bytes=rows * values.element_size() * sum(matrix.shape[1] + 2 * matrix.shape[0] for matrix in matrices),
        kernels=layer.num_layers * _directions(layer) + step_kernels,
        step_kernels=step_kernels,
    )


def _directions(layer: nn.RNNBase) -> int:
    return 2 if layer.bidirectional else 1


def _results(layer: nn.RNNBase, values: Tensor, given: Any) -> tuple[Tensor, Any]:
    # The outputs of all steps, and the last states, as the layer returns them.
    alone = values.dim() == 2  # one sequence without a dimension of samples
    steps_at = 1 if layer.batch_first and not alone else 0
    values = values.unsqueeze(1) if alone else values
    states = _states(layer, values, given, steps_at, alone=alone)
    lasts: list[list[Tensor]] = [[] for _ in states]
    for number, weights in enumerate(_by_layer(layer)):
        outputs: list[Tensor] = []
        for direction, mine in enumerate(weights):
            run = number * _directions(layer) + direction
            found = _run(layer, values, [state[run].unsqueeze(steps_at) for state in states], mine)
            outputs.append(found[0])
            for last, state in zip(lasts, found, strict=True):
                last.append(state.select(steps_at, -1))
        values = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        if number + 1 < layer.num_layers:
            values = functional.dropout(values, layer.dropout, layer.training)
    if steps_at:  # torch returns steps in front, transposed
        values = values.transpose(0, 1).contiguous().transpose(0, 1)
    ends = [torch.stack(last).squeeze(1) if alone else torch.stack(last) for last in lasts]
    return values.squeeze(1) if alone else values, tuple(ends) if isinstance(layer, nn.LSTM) else ends[0]


def _states(layer: nn.RNNBase, values: Tensor, given: Any, steps_at: int, *, alone: bool) -> Sequence[Tensor]:
    # Of each layer and direction: hidden states, and the cells of an LSTM.
    if given is None:
        runs, samples = layer.num_layers * _directions(layer), values.shape[1 - steps_at]
        widths = (layer.proj_size or layer.hidden_size, layer.hidden_size)[: 2 if isinstance(layer, nn.LSTM) else 1]
        return [values.new_zeros(runs, samples, width) for width in widths]
    states: list[Tensor] = [*given] if isinstance(layer, nn.LSTM) else [given]
    states = [state.unsqueeze(1) for state in states] if alone else states
    expected: Any = tuple(states) if isinstance(layer, nn.LSTM) else states[0]
    layer.check_forward_args(values, expected, None)
    return states


def _by_layer(layer: nn.RNNBase) -> list[Sequence[Sequence[Tensor]]]:
    weights, directions = layer.all_weights, _directions(layer)
    return [weights[first : first + directions] for first in range(0, len(weights), directions)]


def _run(layer: nn.RNNBase, values: Tensor, before: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    # The states of all steps. The sigmoid keeps the gates, and the last operator of each state keeps it.
    inputs, recurrent, *rest = weights
    one, other = rest[:2] if layer.bias else (None, None)
    gates = (functional.linear(values, inputs, one) + functional.linear(before[0], recurrent, other)).sigmoid()
    cell = gates[..., : layer.hidden_size] + before[-1][..., : layer.hidden_size]
    hidden = cell.tanh()
    if layer.proj_size:
        hidden = functional.linear(hidden, rest[-1])
    return (hidden, cell)[: len(before)]
