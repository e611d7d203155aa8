"""Submodules that do not run on tensors without data. The advice to keep them whole did not help."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import graphpipe as gp
from tests.support.programs.plain_training import cut_plan, distance


class Packed(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.rnn = kind(6, 6, batch_first=True)  # type: ignore[call-arg]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class Speech(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.one, self.two, self.out = nn.Embedding(9, 6), Packed(kind), Packed(kind), nn.Linear(6, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.out(self.two(self.one(self.embed(tokens), lengths), lengths))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("opaque", [(), ("one", "two")])
def test_packed_sequences(kind: type[nn.RNNBase], opaque: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    inputs = {"tokens": torch.randint(9, (8, 5)), "lengths": torch.randint(2, 6, (8,))}
    target = torch.randn(8, 5, 3, dtype=torch.float64)
    assert distance(Speech(kind), [(inputs, target)] * 2, nn.functional.mse_loss, cut=2, opaque=opaque) < 1e-12


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)


class ByNumpy(nn.Module):
    """Leaves PyTorch for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x) * torch.from_numpy(x.detach().numpy().clip(-1, 1))


MIDDLES: dict[str, Callable[[], nn.Module]] = {
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double()),
    "scripted, nested": lambda: nn.Sequential(
        nn.Tanh(), torch.jit.script(nn.Sequential(nn.Sequential(nn.Linear(6, 6))).double())
    ),
    "numpy": ByNumpy,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", MIDDLES)
@pytest.mark.parametrize("opaque", [(), ("1",)])
def test_in_the_middle(name: str, opaque: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 6), MIDDLES[name](), nn.Linear(6, 6))
    x, y = batch()
    graph = gp.capture(model.double(), x, opaque=opaque)
    with torch.random.fork_rng():
        plain = nn.functional.mse_loss(model(x), y)
    gradients = torch.autograd.grad(plain, [*model.parameters()])
    with gp.Pipeline(cut_plan(graph, batch_size=8, micro_batch=2), model, nn.functional.mse_loss) as pipeline:
        assert pipeline.step(x, y) == pytest.approx(plain.item(), abs=1e-12)
        found = pipeline.gradients()
    for (parameter, _), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert torch.allclose(found[parameter], gradient, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.timeout(60)
def test_a_norm_without_momentum() -> None:
    """Its average counts the batches, and so reads a number in a buffer."""
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 6))
    assert distance(model, [batch()] * 2, nn.functional.mse_loss, micro_batch=8) < 1e-12


class Deep(nn.Module):
    """Is looked into by default, and fails there."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        held: dict[str, Any] = {}
        exec("found = values.detach().numpy().copy()", {"values": x}, held)
        return self.body(x) + torch.from_numpy(held["found"])


@pytest.mark.timeout(60)
def test_a_block_is_kept_whole_by_itself() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 6), Deep(), nn.Linear(6, 6))
    assert distance(model, [batch()], nn.functional.mse_loss) < 1e-12
    assert [op.name for op in gp.capture(model, batch()[0]).ops] == ["0", "1", "2"]
