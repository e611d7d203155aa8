"""A model that did not fit in memory was not checked at all: each stage that fits is checked alone."""

from typing import Any

import pytest
import torch
from checked_model import cut_everywhere
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.equivalence.check import TooLarge, check_memory
from graphpipe.equivalence.check_stages import StageChecked, check_stages

pytestmark = pytest.mark.timeout(120)
WIDE = 4


class Compared(nn.Module):
    """Compares all samples with the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y - y[:1]


class Moving(nn.Module):
    """Keeps a mean over each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE, WIDE)
        self.register_buffer("mean", torch.zeros(WIDE))

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("mean").lerp_(x.detach().mean(0), 0.1)
        return self.layer(x)


def model(middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), middle, nn.Dropout(), nn.Linear(WIDE, 3))
    return nn.Sequential(*layers)


def checked(one: nn.Module, loss_fn: Any = functional.cross_entropy) -> list[StageChecked]:
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(8, WIDE, generator=draw), torch.randint(3, (8,), generator=draw)
    cut = cut_everywhere(one, x)
    return [*check_stages(cut.plan, one, loss_fn, x, y, captured=cut.captured)]


def test_equal_stages() -> None:
    found = checked(model(nn.Linear(WIDE, WIDE)))
    assert len(found) >= 3
    assert all(each.equal for each in found), [*map(str, found)]
    assert str(found[0]) == "stage 's0' alone computes the same in micro-batches"


def test_a_stage_that_compares_samples_and_a_loss_that_is_a_sum() -> None:
    found = checked(model(Compared()), lambda output, target: functional.cross_entropy(output, target, reduction="sum"))
    wrong = {each.stage: {one.kind for one in each.differences} for each in found if not each.equal}
    assert [*wrong.values()] == [{"value", "gradient"}, {"loss", "gradient"}]
    assert "that is sent on is off by" in str(next(each for each in found if not each.equal))


def test_a_stage_that_changes_a_buffer_in_each_call() -> None:
    one = model(Moving())
    before = one[2].get_buffer("mean").clone()
    (wrong,) = [each for each in checked(one) if not each.equal]
    assert [(each.kind, each.name) for each in wrong.differences] == [("buffer", "2.mean")]
    assert torch.equal(one[2].get_buffer("mean"), before)


def test_a_model_without_data_gets_the_weights_of_a_stage_at_a_time() -> None:
    with torch.device("meta"):
        one = model(nn.Linear(WIDE, WIDE))
    assert all(each.equal for each in checked(one))
    assert all(each.is_meta for each in one.parameters())


def test_what_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    big = model(nn.Sequential(nn.Linear(WIDE, 400), nn.Linear(400, WIDE)))
    for module in ("check", "check_stages"):
        monkeypatch.setattr(f"graphpipe.equivalence.{module}.available_host_bytes", lambda: 20_000)
    with pytest.raises(TooLarge, match=r"the model takes 114 KiB for weights and gradients, 19\.5 KiB are free"):
        check_memory(big)
    first, *_, last = checked(big)
    assert first.equal
    assert "comes from a stage that was not" in last.skipped
