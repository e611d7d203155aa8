"""Losses that are no mean over samples. Micro-batches trained another loss, up to 86 % off, without a word."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.run.stage.losses.check_mean import check_mean
from tests.support.programs.plain_training import cut_plan, distance

CLASSES = 7


def words() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(CLASSES, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, CLASSES))


def flat() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(CLASSES, 8), nn.Flatten(), nn.Linear(32, 8), nn.Linear(8, CLASSES))


def texts(*, ignored: int = -100) -> tuple[Tensor, Tensor]:
    """Texts of 4 words, of which some have no label; the first micro-batch has none at all."""
    torch.manual_seed(0)
    tokens, labels = torch.randint(CLASSES, (8, 4)), torch.randint(CLASSES, (8, 4))
    for row in range(8):
        labels[row, row % 4 + 1 :] = ignored
    labels[:2] = ignored
    return tokens, labels


def classes() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randint(CLASSES, (8, 4)), torch.randint(CLASSES, (8,))


WEIGHTS = (torch.rand(CLASSES, generator=torch.Generator().manual_seed(2)) + 0.1).double()
Loss = Callable[[Any, Any], Any]


def tokens_of(loss: Loss) -> Loss:
    return lambda output, targets: loss(output.flatten(0, 1), targets.flatten())


ENTROPY = tokens_of(functional.cross_entropy)
OF_CLASSES: dict[str, Loss] = {
    "weights": nn.CrossEntropyLoss(weight=WEIGHTS),
    "function with weights": partial(functional.cross_entropy, weight=WEIGHTS, label_smoothing=0.1),
    "ignored class": nn.CrossEntropyLoss(ignore_index=3),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "function": functional.cross_entropy,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_losses_of_torch_are_exact(name: str, micro_batch: int) -> None:
    assert distance(flat(), [classes()] * 2, OF_CLASSES[name], micro_batch=micro_batch) < 1e-12


@pytest.mark.timeout(60)
def test_log_likelihoods_and_sums_of_squares() -> None:
    model = nn.Sequential(flat(), nn.LogSoftmax(1))
    assert distance(model, [classes()], nn.NLLLoss(weight=WEIGHTS, ignore_index=2)) < 1e-12
    inputs, _ = classes()
    target = torch.rand(8, CLASSES, dtype=torch.float64)
    assert distance(flat(), [(inputs, target)], nn.MSELoss(reduction="sum")) < 1e-12
    assert distance(flat(), [(inputs, target)], nn.CrossEntropyLoss()) < 1e-12  # probabilities


def pair(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    losses = functional.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="sum")
    return losses, (targets != -100).sum()


def pair_mean(output: Tensor, targets: Tensor) -> Tensor:
    total, weight = pair(output, targets)
    return total / weight


NAMED = gp.WeightedLoss(ENTROPY, weight=lambda targets: (targets != -100).sum())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("loss", [pair, NAMED], ids=["pair", "named"])
def test_a_mean_over_labels_is_exact_with_its_weight(loss: Loss) -> None:
    """Also if a micro-batch has no labels, and with gradients that are clipped."""
    assert distance(words(), [texts()] * 2, loss, plain_loss=ENTROPY) < 1e-12
    assert distance(words(), [texts()] * 2, loss, plain_loss=ENTROPY, micro_batch=1, cut=0) < 1e-12


@pytest.mark.timeout(60)
@pytest.mark.parametrize("loss", [pair, NAMED], ids=["pair", "named"])
def test_evaluation_and_gradients_with_weights(loss: Loss) -> None:
    model, (tokens, labels) = words(), texts()
    plan = cut_plan(gp.capture(model, tokens), batch_size=8, micro_batch=2)
    options = gp.PipelineOptions(clip_norm=1e-3)
    with gp.Pipeline(plan, model, loss, options=options) as pipeline:
        assert pipeline.step(tokens, labels) == pytest.approx(ENTROPY(model(tokens), labels).item(), rel=1e-6)
        norm = torch.stack([each.norm() for each in pipeline.gradients().values() if each is not None]).norm().item()
        assert norm == pytest.approx(1e-3, rel=1e-3)
        found, _ = pipeline.evaluate(tokens[1:6], labels[1:6])
        assert found == pytest.approx(ENTROPY(model(tokens[1:6]), labels[1:6]).item(), rel=1e-6)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("micro_batch", [2, 8])
def test_weights_of_shares_are_summed_after_their_losses(micro_batch: int) -> None:
    # Also those of a micro-batch that is the whole mini-batch.
    model, (tokens, labels) = words(), texts()
    plan = cut_plan(gp.capture(model, tokens), batch_size=8, micro_batch=micro_batch)
    with gp.Pipeline(plan, model, NAMED) as pipeline:
        needs = pipeline.needs(8)
        inputs = {name: tokens[list(rows)] for name, rows in needs.inputs.items()}
        share = gp.BatchShare(samples=range(8), inputs=inputs, targets=labels[list(needs.targets)])
        found, _ = pipeline.evaluate(share)
        assert found == pytest.approx(ENTROPY(model(tokens), labels).item(), rel=1e-6)


def dice(output: Tensor, targets: Tensor) -> Tensor:
    p, y = output.softmax(-1), functional.one_hot(targets.clamp(min=0), CLASSES)
    return 1 - 2 * (p * y).sum() / (p.square().sum() + y.sum())


REFUSED: dict[str, Loss] = {
    "labels": ENTROPY,
    "sum": tokens_of(partial(functional.cross_entropy, reduction="sum")),
    "root": lambda output, targets: ENTROPY(output, targets.clamp(min=0)).sqrt(),
    "dice": dice,
    "maximum": lambda output, targets: (output.logsumexp(-1) - targets).amax(),
    "a wrong weight": gp.WeightedLoss(ENTROPY, weight=len),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_other_losses_are_refused_in_the_first_step(name: str, micro_batch: int) -> None:
    with pytest.raises(InvalidInput, match=r"loss_fn: the loss of \d samples is not .*gp\.WeightedLoss"):
        distance(words(), [texts()], REFUSED[name], micro_batch=micro_batch)


@pytest.mark.timeout(60)
def test_what_shows_later_is_a_warning() -> None:
    tokens, labels = texts()
    batches = [(tokens, labels.clamp(min=0)), (tokens, labels)]
    with pytest.warns(UserWarning, match="micro-batches would train another loss"), pytest.raises(gp.NonFiniteLoss):
        distance(words(), batches, ENTROPY)


def of_positives(output: Tensor, targets: Tensor) -> Tensor:
    found, positive = functional.cross_entropy(output, targets, reduction="none"), targets > 2
    return found[positive].sum() / positive.sum()


def contrastive(output: Tensor, targets: Tensor) -> Tensor:
    unit, itself = functional.normalize(output, dim=1), torch.eye(len(targets), dtype=torch.bool)
    likely = (unit @ unit.T / 0.1).masked_fill(itself, -1e9).log_softmax(1)
    alike = (targets[:, None] == targets) & ~itself
    return -((likely * alike).sum(1) / alike.sum(1).clamp(min=1)).mean()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("loss", [of_positives, contrastive])
def test_losses_whose_parts_say_nothing(loss: Loss) -> None:
    """A half without a label has no mean, and two samples are no contrast: such losses passed for means."""
    tokens, _ = classes()
    with pytest.raises(InvalidInput, match=r"loss_fn: the loss of \d samples is not"):
        distance(flat(), [(tokens, torch.tensor([0, 3, 1, 4, 2, 5, 0, 6]))], loss)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(CLASSES))

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        centre = self.get_buffer("centre")
        found = functional.cross_entropy(output - centre, targets)
        centre.lerp_(output.detach().mean(0).to(centre), 0.1)
        return found


@pytest.mark.timeout(60)
def test_a_buffer_of_the_loss_that_moves() -> None:
    """The centre of DINO moved once for each micro-batch, without a word."""
    with pytest.warns(UserWarning, match=r"loss_fn: Centred changes the buffer 'centre' in each call.*whole_batch"):
        distance(flat(), [classes()], Centred())


@pytest.mark.timeout(60)
def test_the_whole_mini_batch_may_have_any_loss() -> None:
    tokens, labels = texts()
    assert distance(words(), [(tokens, labels.clamp(min=0))], dice, cut=0, micro_batch=8) < 1e-12


@pytest.mark.timeout(60)
def test_a_tuple_of_something_else() -> None:
    with pytest.raises(InvalidInput, match="returned a tuple of 3"):
        distance(words(), [texts()], lambda output, targets: (output.sum(), 1, 2), plain_loss=pair_mean)


def balanced(output: Tensor, targets: Tensor) -> Tensor:
    counts = torch.bincount(targets, minlength=3).clamp(min=1)
    return functional.cross_entropy(output, targets, weight=(len(targets) / counts).to(output))


def test_classes_that_weigh_by_their_number_of_samples_are_refused() -> None:
    """Two samples of two classes weigh the same, and so do each of them twice: only a third one shows it."""
    with pytest.raises(InvalidInput, match="the loss of 3 samples is not the mean"):
        check_mean(balanced, torch.randn(2, 3), torch.tensor([0, 2]), first=True)
    check_mean(functional.cross_entropy, torch.randn(2, 3), torch.tensor([0, 2]), first=True)
