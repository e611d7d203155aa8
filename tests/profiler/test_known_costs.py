"""Costs of operators that did not change are not measured again."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.costs import CostTable
from graphpipe.profiler import profile_ops
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.profile import profile
from graphpipe.profiler.step_overheads import profile_optimizer

QUICK = Effort(repeats=1, repeats_if_uneven=1, seconds=0.0)


class Scaled(nn.Module):
    """A linear layer and a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(8, 8), factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * self.factor


class Own(torch.optim.SGD):
    """An optimizer of the user's, whose code may change."""


def model(factor: float = 2.0, wide: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), Scaled(factor), nn.Linear(8, wide), nn.Linear(wide, 2))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The operators that were measured together."""
    windows: list[list[str]] = []
    original = profile_ops._profile

    def counted(window, *rest):
        windows.append([run.op for run in window])
        return original(window, *rest)

    monkeypatch.setattr(profile_ops, "_profile", counted)
    return windows


def costs(module: nn.Module, cache: Path | None, loss_fn=functional.mse_loss, sizes=(1, 4)) -> CostTable:
    return profile(
        module,
        torch.randn(4, 4),
        gp.Cluster.preset("local:1"),
        loss_fn=loss_fn,
        targets=torch.randn(4, 2),
        batch_sizes=sizes,
        effort=QUICK,
        cache=cache,
    )


def test_the_second_profile_reads_the_rows_of_the_first(tmp_path: Path, measured: list[list[str]]) -> None:
    first = costs(model(), tmp_path)
    second = costs(model(), tmp_path)  # with other random weights
    assert second == first
    assert len(measured) == 1
    assert {path.stat().st_mode & 0o077 for path in [tmp_path / "costs"]} == {0}
    costs(model(), None)
    assert len(measured) == 2


def rows_in(cache: Path) -> set[Path]:
    """Return the files of rows. What an operator keeps is in a file beside each."""
    files = {*(cache / "costs").iterdir()}
    rows = {path for path in files if path.suffixes == [".json"]}
    assert files - rows == {path.with_suffix(".kept.json") for path in rows}
    return rows


@pytest.mark.parametrize(
    ("changed", "alone"),
    [
        (lambda cache: costs(model(factor=3.0), cache), {"1"}),
        (lambda cache: costs(model(wide=32), cache), {"2", "3"}),
        (lambda cache: costs(model(), cache, functional.l1_loss), {"3"}),
        (lambda cache: costs(model(), cache, sizes=(1, 2, 4)), {"0", "1", "2", "3"}),
    ],
    ids=["a value that a module holds", "shapes", "the loss", "batch sizes"],
)
def test_only_changed_operators_are_measured(changed, alone, tmp_path: Path, measured: list[list[str]]) -> None:
    first = {row.op: row for row in costs(model(), tmp_path).rows}
    entries = rows_in(tmp_path)
    second = {row.op: row for row in changed(tmp_path).rows}
    tops = {op.partition(".")[0] for op in second if second[op] != first.get(op)}
    assert tops == alone
    assert {op.partition(".")[0] for op in measured[1]} >= alone
    new = rows_in(tmp_path) - entries
    assert len(new) == sum(op.partition(".")[0] in alone for op in second)


def test_a_damaged_file_is_named_and_the_operator_is_measured(tmp_path: Path, measured: list[list[str]]) -> None:
    costs(model(), tmp_path)
    for path in (tmp_path / "costs").iterdir():
        path.write_text("{")
    with pytest.warns(UserWarning, match="a cost in the cache cannot be used, so '.*' is measured again"):
        costs(model(), tmp_path)
    assert len(measured) == 2
    costs(model(), tmp_path)
    assert len(measured) == 2


def test_an_operator_with_a_loss_that_cannot_be_compared_is_measured_every_time(
    tmp_path: Path, measured: list[list[str]]
) -> None:
    generator = torch.Generator()

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(output, targets) + 0 * generator.initial_seed()

    for _ in range(2):
        costs(model(), tmp_path, loss)
    assert [window[-1] for window in measured] == ["3", "3"]
    assert len(rows_in(tmp_path)) == len(measured[0]) - 1


def test_what_a_step_costs_is_measured_again_with_another_optimizer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training of a model that was profiled before still timed its optimizer, for seconds."""
    timed: list[object] = []

    def counted(stepper, effort):
        timed.append(stepper)
        return profile_optimizer(stepper, effort)

    monkeypatch.setattr("graphpipe.profiler.operator_measuring.profile_optimizer", counted)
    kinds = (torch.optim.AdamW, torch.optim.AdamW, partial(torch.optim.AdamW, amsgrad=True), torch.optim.SGD, Own, Own)
    for kind in kinds:
        profile(
            model(),
            torch.randn(4, 4),
            gp.Cluster.preset("local:1"),
            batch_sizes=(1,),
            optimizer=kind,
            effort=QUICK,
            cache=tmp_path,
        )
    assert [type(each).__name__ for each in timed] == ["AdamW", "AdamW", "SGD", "Own", "Own"]
