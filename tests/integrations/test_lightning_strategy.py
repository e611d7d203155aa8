"""`PipelineStrategy` trains, logs, evaluates, saves and resumes as Lightning does in one process."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="an optional extra: pip install graphpipe-torch[lightning]")

from lightning.pytorch import LightningModule, Trainer
from run_lightning import Pairs, TwoBranches, fit, fit_on_ranks
from run_ranks import run_ranks, values
from run_trainers import two_stages
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from graphpipe.errors import InvalidInput
from graphpipe.integrations.lightning import PipelineStrategy

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what Lightning makes of the module in one process."""
    return fit(tmp_path_factory.mktemp("plain"), pipeline=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the ranks."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    """Return what two ranks make of it."""
    return values(run_ranks(fit_on_ranks, 2, folder / "world", str(folder)))


def numbers(log: str) -> list[float]:
    """Return the figures of a log."""
    return [float(each) for each in re.findall(r"\d+\.\d+(?:e-?\d+)?", log)]


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare two trainings."""
    assert found["logged"] == pytest.approx(expected["logged"], rel=1e-5)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, rtol=1e-5, atol=1e-6, msg=name)
    assert torch.equal(found["answers"], expected["answers"])


def test_one_process_trains_as_lightning_does(tmp_path: Path, plain: dict[str, Any]) -> None:
    found = fit(tmp_path, pipeline=True)
    assert_same(found, plain)
    assert found["log"].splitlines()[0] == plain["log"].splitlines()[0]
    assert numbers(found["log"]) == pytest.approx(numbers(plain["log"]), rel=1e-4)


def test_two_ranks_train_as_lightning_does(ranks: list[dict[str, Any]], plain: dict[str, Any]) -> None:
    for rank in ranks:
        assert_same(rank, plain)
    assert numbers(ranks[0]["log"]) == pytest.approx(numbers(plain["log"]), rel=1e-4)


def test_a_checkpoint_of_two_ranks_continues_in_one_process_without_a_pipeline(
    ranks: list[dict[str, Any]], plain: dict[str, Any], tmp_path: Path
) -> None:
    here = fit(tmp_path / "a", pipeline=False, checkpoint=ranks[0]["checkpoint"], max_epochs=3)
    there = fit(tmp_path / "b", pipeline=True, checkpoint=plain["checkpoint"], max_epochs=3)
    assert_same(there, here)


def test_gradients_of_several_batches_are_accumulated_as_lightning_does(tmp_path: Path) -> None:
    found, expected = (
        fit(tmp_path / name, pipeline=name == "pipeline", accumulate_grad_batches=2) for name in ("pipeline", "plain")
    )
    assert_same(found, expected)


class ByHand(TwoBranches):
    """Optimizes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class OwnBackward(TwoBranches):
    """Does the backward by itself."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward()


class TwoCalls(TwoBranches):
    """Calls its branches one by one."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        both = torch.cat([self.left(batch["left"].flatten(1)), self.right(batch["right"])], dim=1)
        return cross_entropy(self.head(both), batch["label"])


class NoMean(TwoBranches):
    """Takes a root of a mean."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(self(batch["left"].flatten(1), batch["right"]), batch["label"]).sqrt()


class LogsText(TwoBranches):
    """Logs the outputs."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        scores = self(batch["left"].flatten(1), batch["right"])
        self.log("scores", scores)
        return cross_entropy(scores, batch["label"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ByHand, r"automatic_optimization: is False.*gp\.Pipeline"),
        (OwnBackward, r"backward: is overridden by OwnBackward"),
        (TwoCalls, r"training_step: calls '(right|head)' beside 'left'.*self\(\.\.\.\) once"),
        (NoMean, r"is not (the mean of|what follows from) the losses of its parts"),
        (LogsText, r"training_step: logs 'scores', a Tensor"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused_by_name(
    kind: Callable[[], LightningModule], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        train(kind(), tmp_path)


def test_another_precision_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"precision: is '64-true'\. Take 32-true or bf16-mixed"):
        train(TwoBranches(), tmp_path, precision="64-true")


class OneSubmodule(LightningModule):
    """Calls one submodule, whose parameters are all there are, and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        return {"loss": self.loss(self.net(batch["left"]), batch["label"])}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_step_may_call_one_submodule_in_place_of_the_module(tmp_path: Path) -> None:
    module, plain = OneSubmodule(), OneSubmodule()
    train(module, tmp_path)
    train(plain, tmp_path, strategy="auto")
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], weight)


def train(module: LightningModule, folder: Path, **more: Any) -> None:
    """Train a module for two steps."""
    strategy = PipelineStrategy(plan=two_stages, cluster="local:2", device="cpu")
    given: dict[str, Any] = {"strategy": strategy, "max_steps": 2, **more}
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=str(folder),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **given,
    )
    trainer.fit(module, DataLoader(Pairs(16, 1), batch_size=8))
