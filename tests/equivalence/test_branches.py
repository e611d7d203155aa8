"""A forward that branches on all samples of a call: two samples at random often answer alike, and nothing was found."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from latin_square import latin_square
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.equivalence.small_plan import small_plan
from graphpipe.equivalence.steps.check_subject import CheckSubject
from graphpipe.equivalence.steps.doubtful_rows import ROWS, doubtful_rows
from tests.support.programs.plain_training import cut_plan

pytestmark = pytest.mark.timeout(60)
Branch = Callable[[Tensor], Any]
BRANCHES: dict[str, Branch] = {
    "item": lambda x: x.sum().item() > 0,
    "max": lambda x: x.max() > 3,
    "any": lambda x: (x > 3).any(),
    "numpy": lambda x: x.detach().numpy().sum() > 0,
}


class Either(nn.Module):
    def __init__(self, branch: Branch) -> None:
        super().__init__()
        self.one, self.other, self.branch = nn.Linear(4, 4), nn.Linear(4, 4), branch

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if self.branch(x) else self.other(x)


def samples() -> Tensor:
    """Return 12 samples, of which the third and the tenth answer otherwise than the others."""
    torch.manual_seed(0)
    x = -torch.rand(12, 4)
    x[[2, 9]] = 4 + torch.rand(2, 4)
    return x


def subject(branch: Branch, micro_batch: int) -> tuple[gp.Plan, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(Either(branch), nn.Tanh(), nn.Linear(4, 3))
    graph = gp.capture(model, samples(), opaque=["0"])
    return cut_plan(graph, batch_size=12, micro_batch=micro_batch), model


@pytest.mark.parametrize(("name", "micro_batch"), latin_square(BRANCHES, [1, 2]))
@pytest.mark.filterwarnings("ignore:.*mixes the samples")
def test_a_branch_on_all_samples_is_found(name: str, micro_batch: int) -> None:
    plan, model = subject(BRANCHES[name], micro_batch)
    refused, found = None, None
    try:
        found = gp.check(plan, model, nn.functional.cross_entropy, samples(), torch.arange(12) % 3)
    except gp.InvalidInput as error:  # The first step compares samples together and apart, too.
        refused = str(error)
    assert "the forward of '0' mixes the samples" in refused if refused else found and found.level == "micro-batches"


def test_without_a_branch_the_first_samples_are_trained() -> None:
    plan, model = subject(lambda x: True, 2)
    given = CheckSubject(
        plan=small_plan(plan),
        model=model,
        loss_fn=nn.functional.cross_entropy,
        inputs={"input": samples()},
        targets=None,
        captured=None,
    )
    assert doubtful_rows(given).outputs[ROWS].tolist() == [0, 1, 2, 3]
    assert gp.check(plan, model, nn.functional.cross_entropy, samples(), torch.arange(12) % 3).equal


class Loudest(nn.Module):
    """Keeps the louder half of the samples of a call."""

    def forward(self, x: Tensor) -> Tensor:
        loudness = x.norm(dim=1)
        return x * (loudness >= loudness.topk(max(1, len(x) // 2)).values[-1]).unsqueeze(1)


@pytest.mark.filterwarnings("ignore:.*mixes the samples")
def test_a_whole_mini_batch_that_divides_by_chance_as_its_samples_answer_is_not_trained_as_it_is() -> None:
    """Each micro-batch had its share of the louder samples, so nothing differed, and no further samples were given."""
    torch.manual_seed(0)
    x = torch.rand(8, 4) + 0.1
    x[[0, 2, 4, 6]] += 1
    model = nn.Sequential(Loudest(), nn.Linear(4, 3))
    graph, cluster = gp.capture(model, x, opaque=["0"]), gp.Cluster.preset("local:2")
    stages = [gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=4)]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages)
    assert gp.check(plan, model, nn.functional.cross_entropy, x, torch.arange(8) % 3).level == "micro-batches"


def by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over classes of the mean loss of each."""
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return torch.stack([losses[targets == each].mean() for each in targets.unique()]).mean()


def test_a_mean_over_classes_is_refused_in_micro_batches_of_one() -> None:
    """Of two samples it is the mean over samples. A third one, of the class of the first, shows that it is not."""
    plan, model = subject(lambda x: True, 1)
    with pytest.raises(gp.InvalidInput, match="the loss of 3 samples is not the mean"):
        gp.check(plan, model, by_class, samples(), torch.tensor([0, 0, 0, 1] * 3))
