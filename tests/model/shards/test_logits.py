"""A cross-entropy reads the logits of a head where they are: each rank has some columns."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.graph import Exchanges, OpShards
from graphpipe.model.shards.logits.divided_logits import DividedLogits
from graphpipe.model.shards.team import own_range
from graphpipe.model.shards.trial import ThreadTeam, computed_by_two
from graphpipe.model.zoo.gpt import Gpt, GptShape

SAMPLES, CLASSES, LENGTH, WORDS = 3, 11, 6, 24
TOKENS = torch.zeros(2, LENGTH, dtype=torch.long)
Loss = Callable[[Any, Any], Tensor]


def gpt() -> nn.Module:
    """Return a small language model."""
    return Gpt(GptShape(layers=1, sequence=LENGTH, hidden=8, heads=4, feed_forward=16, vocabulary=WORDS))


@cache
def captured_gpt() -> gp.Graph:
    """Return its graph."""
    return gp.capture(gpt(), TOKENS)


def flat(output: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over all labels."""
    return functional.cross_entropy(output.flatten(0, 1), labels.flatten())


def smoothed(output: Tensor, labels: Tensor) -> Tensor:
    """Return that of smoothed labels, by a module."""
    return nn.CrossEntropyLoss(label_smoothing=0.1)(output.reshape(-1, CLASSES), labels.reshape(-1))


def by_classes(output: Tensor, labels: Tensor) -> Tensor:
    """Return a weighted sum, with the classes in the second dimension."""
    losses = functional.cross_entropy(output.transpose(1, 2), labels, reduction="none")
    return (losses * torch.arange(LENGTH)).sum()


def shifted(output: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of the next words, as models of transformers do."""
    rows = output[..., :-1, :].contiguous().float()
    return functional.cross_entropy(rows.view(-1, output.size(-1)), labels[..., 1:].reshape(-1), ignore_index=-100)


def capped(output: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of some rows of capped logits."""
    return functional.cross_entropy((5 * torch.tanh(output / 5))[labels != -100], labels[labels != -100])


def exported(output: Tensor, labels: Tensor) -> Tensor:
    """Return the loss by the operators of an exported graph."""
    aten = torch.ops.aten
    rows = aten.view.default(aten.slice.Tensor(output, 1, 0, LENGTH), [-1, CLASSES])
    return aten.cross_entropy_loss.default(aten._to_copy.default(rows, dtype=torch.float32), labels.flatten(), None, 2)


def by_weights(output: Tensor, labels: Tensor) -> Tensor:
    """Return a loss with a weight for each class."""
    weight = torch.linspace(1, 2, CLASSES, dtype=output.dtype)
    return functional.cross_entropy(output.flatten(0, 1), labels.flatten(), weight)


def with_size(output: Tensor, labels: Tensor) -> Tensor:
    """Return a loss that also keeps the sum of exponents small."""
    return flat(output, labels) + output.logsumexp(-1).square().mean()


def scaled(output: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of logits with a factor for each sample, as the check of the first steps has them."""
    return flat(output.detach().double() * torch.linspace(1, 2, SAMPLES).reshape(-1, 1, 1), labels) + flat(
        output, labels
    )


KEPT = [flat, smoothed, by_classes, shifted, capped, exported, scaled]
GATHERED = [by_weights, with_size]


def labelled() -> tuple[Tensor, Tensor]:
    """Return logits and labels, of which one is ignored."""
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES, LENGTH))
    labels[0, 2] = -100
    return torch.randn(SAMPLES, LENGTH, CLASSES, dtype=torch.float64), labels


@pytest.mark.parametrize("loss_fn", KEPT + GATHERED, ids=lambda each: each.__name__)
def test_losses_and_gradients_are_those_of_whole_logits(loss_fn: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    values, labels = labelled()
    whole = values.clone().requires_grad_()
    wanted = loss_fn(whole, labels)
    wanted.backward()
    gathered: list[int] = []
    own = DividedLogits.whole

    def counted(logits: DividedLogits) -> Tensor:
        gathered.append(1)
        return own(logits)

    monkeypatch.setattr(DividedLogits, "whole", counted)

    def compute(team: ThreadTeam) -> tuple[Tensor, Tensor | None]:
        start, stop = own_range(CLASSES, 2, team.position)
        columns = values[..., start:stop].clone().requires_grad_()
        loss = loss_fn(DividedLogits(columns * 1, team, CLASSES, 2), labels)
        loss.backward()
        return loss.detach(), columns.grad

    found = computed_by_two(compute)
    exact = 1e-6 if loss_fn in (shifted, exported) else 1e-13  # these compute in single precision
    for each in found:
        assert each is not None
        torch.testing.assert_close(each[0], wanted.detach(), rtol=exact, atol=0)
    gradient = torch.cat([each[1] for each in found if each is not None and each[1] is not None], -1)
    torch.testing.assert_close(gradient, whole.grad, rtol=exact, atol=exact / 10)
    assert bool(gathered) == (loss_fn in GATHERED)


def test_a_loss_cannot_write_into_the_logits() -> None:
    # They are gathered for what is no cross-entropy, and what was written there once would have been lost.
    values, _ = labelled()
    logits = DividedLogits(values[..., :5], ThreadTeam.make()[0], CLASSES, 2)
    with pytest.raises(InvalidInput, match="writes into the logits"):
        logits[:, 0] = 0.0
    with pytest.raises(InvalidInput, match="writes into the logits"):
        logits.mul_(2.0)


def test_a_word_that_is_not_in_the_vocabulary_is_refused() -> None:
    values, labels = labelled()
    labels[1, 1] = CLASSES
    with pytest.raises(IndexError, match="has 11 words"):
        flat(DividedLogits(values[..., :5], ThreadTeam.make()[0], CLASSES, 2), labels)


def head_of(loss_fn: Loss | None) -> OpShards:
    """Return the layout of the head of a small language model."""
    graph = gp.with_shards(captured_gpt(), gpt(), loss_fn=loss_fn, sequence_parallel=True)
    found = graph["head.vocabulary"].shards
    assert found is not None
    return found


def test_a_head_keeps_its_logits_if_the_loss_is_a_cross_entropy() -> None:
    found, gathered = head_of(flat), head_of(None)
    assert [each.style for each in found.submodules] == ["vocabulary-logits"]
    assert found.divides_logits
    # A gather of half of the logits becomes one of a maximum of each word, and a sum of two numbers.
    assert gathered.figures.forward == Exchanges(reductions=0.5, bytes_per_sample=4.0 * LENGTH * WORDS / 2)
    assert found.figures.forward == Exchanges(reductions=1.5, bytes_per_sample=4.0 * LENGTH * 3)
    assert found.figures.backward == gathered.figures.backward
    one, other = found.sequence, gathered.sequence
    assert one is not None
    assert other is not None
    fewer = other.figures.forward.bytes_per_sample - one.figures.forward.bytes_per_sample
    assert fewer == 4.0 * LENGTH * (WORDS / 2 - 3)


@pytest.mark.parametrize("loss_fn", [with_size, lambda output, labels: output.argmax(-1).sum() / labels.max()])
def test_other_losses_get_gathered_logits(loss_fn: Loss) -> None:
    assert head_of(loss_fn) == head_of(None)


class TwoReaders(nn.Module):
    """A model that also returns something else of its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.model = gpt()

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(tokens)
        return logits, logits.amax(-1)


def test_logits_that_something_else_reads_are_gathered() -> None:
    def loss_fn(output: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        return flat(output[0], labels)

    model = TwoReaders()
    graph = gp.with_shards(gp.capture(model, TOKENS), model, loss_fn=loss_fn)
    assert not any(op.shards.divides_logits for op in graph.ops if op.shards)


class Tempered(nn.Module):
    """A model that learns the temperature of its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.temperature = gpt(), nn.Parameter(torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens) * self.temperature.exp()


def test_logits_that_a_learnt_factor_enters_are_gathered() -> None:
    """The gradient of the factor was that of a rank's columns."""
    model = Tempered()
    graph = gp.with_shards(gp.capture(model, TOKENS), model, loss_fn=flat)
    assert not any(op.shards.divides_logits for op in graph.ops if op.shards)


def test_a_loss_that_learns_a_factor_gathers() -> None:
    values, labels = labelled()
    factor = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(flat(values * factor, labels), [factor])

    def compute(team: ThreadTeam) -> Tensor:
        start, stop = own_range(CLASSES, 2, team.position)
        own = factor.detach().clone().requires_grad_()
        logits = DividedLogits(values[..., start:stop].clone().requires_grad_() * 1, team, CLASSES, 2)
        return torch.autograd.grad(flat(logits * own, labels), [own])[0]

    for each in computed_by_two(compute):
        torch.testing.assert_close(each, wanted)
