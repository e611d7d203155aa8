"""Recurrent layers on fake tensors: results as the layers return them, and work by their equations."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import graphpipe as gp
from graphpipe.model.capture.work.recurrence import recurrent_layers_at_a_glance
from graphpipe.model.torch_private import fake_mode

FORMS = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False, "batch_first": True},
    {"num_layers": 3, "dropout": 0.5},
]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("states", [True, False])
def test_results_have_the_shapes_and_strides_of_the_layer(kind, form, states):
    def results():
        layer = kind(5, 4, **form)
        runs = layer.num_layers * (1 + layer.bidirectional)
        x = torch.randn(3, 7, 5)
        samples = 3 if layer.batch_first else 7
        state = torch.randn(runs, samples, 4)
        given = (state, torch.randn(runs, samples, 4)) if kind is nn.LSTM else state
        output, last = layer(x, given) if states else layer(x)
        return [output, *(last if kind is nn.LSTM else (last,))]

    expected = results()
    with fake_mode(), recurrent_layers_at_a_glance():
        found = results()
    assert [(each.shape, each.stride()) for each in found] == [(each.shape, each.stride()) for each in expected]
    assert all(each.requires_grad for each in found)


def test_one_sequence_and_a_projected_state():
    def shapes():
        one, (hidden, cell) = nn.LSTM(5, 4, proj_size=3, num_layers=2)(torch.randn(7, 5))
        return one.shape, hidden.shape, cell.shape

    expected = shapes()
    with fake_mode(), recurrent_layers_at_a_glance():
        assert shapes() == expected


def test_the_layers_are_themselves_again_after_it():
    forwards = nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward
    with pytest.raises(RuntimeError), recurrent_layers_at_a_glance():
        raise RuntimeError
    assert forwards == (nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward)


class _Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (1 + layer.bidirectional), 2)

    def forward(self, x):
        return self.head(self.layer(x)[0])


def _op_of(layer, steps):
    graph = gp.capture(_Recurrent(layer), {"x": torch.randn(4, steps, layer.input_size)})
    (op,) = [op for op in graph.ops if op.kind == type(layer).__name__]
    return op


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_work_is_that_of_the_equations(kind, gates):
    # A GRU of 96 steps counted 1,461 kernels and an LSTM 0 FLOPs. Two layers, two directions, hidden size 8:
    work = _op_of(kind(6, 8, num_layers=2, bidirectional=True, batch_first=True), 12).work
    assert work.flops_per_sample == 12 * 2 * (2 * gates * 8 * (6 + 8) + 2 * gates * 8 * (16 + 8))
    assert (work.kernels, work.step_kernels) == (4 + 12 * 8, 12 * 8)
    # The backward needs the gates of every step at least.
    assert work.saved_bytes_per_sample >= 4 * 12 * 4 * gates * 8


def test_a_large_lstm_counts_billions():
    work = _op_of(nn.LSTM(1024, 1024, num_layers=4, batch_first=True), 100).work
    assert work.flops_per_sample == pytest.approx(6_711e6, rel=1e-3)


def test_the_size_of_batch_and_state_counts_in_the_time():
    cluster = gp.Cluster.preset("dgx-a100:1x1")

    def milliseconds(hidden, samples):
        graph = gp.capture(_Recurrent(nn.GRU(64, hidden, batch_first=True)), {"x": torch.randn(4, 96, 64)})
        plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=samples)
        return 1e3 * gp.simulate(plan).step_seconds

    small = milliseconds(64, 8)
    assert small < 10  # 116 ms were predicted for twice the layers and directions
    assert milliseconds(1024, 256) > 3 * small


class _Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        packed = pack_padded_sequence(x, torch.full((x.shape[0],), x.shape[1]), batch_first=True)
        return self.head(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])


def test_packed_sequences_count_their_rows():
    graph = gp.capture(nn.Sequential(_Packed(), nn.Identity()), {"input": torch.randn(4, 6, 5)})
    assert sum(op.work.flops_per_sample for op in graph.ops) == 6 * 2 * (12 * 9 + 8)
