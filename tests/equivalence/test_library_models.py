"""Models as libraries have them: spectra, spiking neurons, draws, sparse gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Laplace, Normal

import graphpipe as gp
from graphpipe.equivalence.equivalence import Equivalence

pytestmark = pytest.mark.timeout(120)


class Fourier(nn.Module):
    """Writes the modes that it keeps into zeros, in its own forward: TFNO could not be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(self.a(x))
        kept = torch.zeros_like(modes)
        kept[:, 1:4] = modes[:, :3] @ self.weight
        kept[:, 0] = modes[:, 4]
        return self.b(torch.fft.irfft(kept, n=8))


class Vocoder(nn.Module):
    """Sends a complex spectrum to `istft`, which asks whether its window has zeros."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(18, 18), nn.Linear(18, 18)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.stft(x, 16, 4, window=self.window, return_complex=True)
        joined = torch.cat([spectrum.real, spectrum.imag], 1).transpose(1, 2)
        found = self.b(torch.tanh(self.a(joined))).transpose(1, 2)
        complexes = torch.complex(found[:, :9], found[:, 9:])
        return torch.istft(complexes, 16, 4, window=self.window, length=x.shape[-1])


class Rotation(nn.Module):
    """Has complex parameters and buffers."""

    turn: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat))
        self.register_buffer("turn", torch.randn(8, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,ij->bj", torch.complex(x, x) * self.turn, self.weight).abs()


class Spike(torch.autograd.Function):
    """A step whose backward is that of a smooth function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] / (1 + x * x)


class Neuron(nn.Module):
    """Leaves its membrane potential of each sample in a buffer, as `snntorch.Leaky` does."""

    potential: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("potential", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        self.potential = 0.9 * before + x
        spikes = Spike.apply(self.potential - 1)
        return spikes, self.potential - spikes.detach()


class Spiking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.one, self.b, self.two = nn.Linear(8, 8), Neuron(), nn.Linear(8, 8), Neuron()

    def forward(self, x: Tensor) -> Tensor:
        first = second = torch.zeros_like(x)
        found: list[Tensor] = []
        for _ in range(3):
            spikes, first = self.one(self.a(x), first)
            spikes, second = self.two(self.b(spikes), second)
            found.append(second)
        return torch.stack(found, 1)


class Sizes(tuple[int, ...]):
    """A tuple that does not tell its length, as the irreducible representations of e3nn."""

    def __len__(self) -> int:
        raise NotImplementedError


class Sized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.sizes = nn.Linear(8, 8), Sizes((4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([each.cumsum(1) for each in self.layer(x).split([*iter(self.sizes)], 1)], 1)


class Drawing(nn.Module):
    """Draws in its own forward, as variational models do. Captured draws were other numbers than those of PyTorch."""

    def __init__(self, kind: type[Distribution]) -> None:
        super().__init__()
        self.mean, self.out, self.kind = nn.Linear(8, 8), nn.Linear(8, 2), kind

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.kind(self.mean(x), 1.0).rsample())  # type: ignore[call-arg]


class Words(nn.Module):
    """Has sparse gradients, as recommendation models do."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x.abs().clamp(max=1).mul(19).long()))


def gumbel() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.RReLU(), Choice(), nn.Linear(8, 2))


class Choice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gumbel_softmax(x)


def chain_of(kind: type[nn.Module]) -> nn.Module:
    return nn.Sequential(kind(), nn.Tanh(), kind())


def checked(module: nn.Module, inputs: Tensor) -> Equivalence:
    graph, cluster = gp.capture(module, inputs), gp.Cluster.preset("local:2")
    half = len(graph.order) // 2
    stages = [
        gp.HandStage(ops=ops, devices=(device,), micro_batch=2)
        for device, ops in enumerate((graph.order[:half], graph.order[half:]))
    ]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages)
    return gp.check(plan, module, lambda output, _: output.square().mean(), inputs)


@pytest.mark.parametrize(
    "model",
    [
        Fourier,
        Vocoder,
        Spiking,
        Words,
        gumbel,
        lambda: chain_of(Rotation),
        lambda: chain_of(Sized),
        lambda: Drawing(Normal),
        lambda: Drawing(Laplace),
    ],
    ids=["writes", "istft", "spikes", "sparse", "noise", "complex weights", "sizes", "normal", "laplace"],
)
def test_it_trains_as_plain_pytorch_does(model: Any) -> None:
    torch.manual_seed(0)
    found = checked(model(), torch.randn(8, 64 if model is Vocoder else 8))
    assert found.equal, str(found)
    assert found.precision == "double"


def test_a_potential_that_the_next_micro_batch_reads_is_found() -> None:
    """Only what a forward leaves for each sample is no difference. What it reads of earlier samples is one."""
    torch.manual_seed(0)

    class Remembering(Neuron):
        def forward(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
            seen = self.potential.mean() if self.potential.numel() else 0.0
            return super().forward(x + seen, before)

    module = Spiking()
    module.one = Remembering()
    assert not checked(module, torch.randn(8, 8)).equal


def test_a_state_of_other_samples_is_named() -> None:
    """The message spoke of a backward by hand, and of a submodule that nobody had split."""
    module = nn.Sequential(nn.Linear(8, 8), Stateful(), nn.Linear(8, 8))
    module(torch.randn(8, 8))
    with pytest.raises(gp.InvalidInput, match=r"'1' runs other operators for 8 samples than for 63.*earlier samples"):
        gp.capture(module, torch.randn(8, 8))


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.state is None or self.state.shape != x.shape:
            self.state = torch.zeros_like(x)
        self.state = 0.9 * self.state + x
        return Spike.apply(self.state)
