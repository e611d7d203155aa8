"""A LightningModule of two branches with its data, trained by Lightning with and without a pipeline."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from run_trainers import as_torchrun, two_stages
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from graphpipe.integrations.lightning import PipelineStrategy

SAMPLES, BATCH = 22, 8


def branch(width: int) -> nn.Module:
    """Return a branch."""
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 8))


class TwoBranches(LightningModule):
    """Two branches and a head. What comes before and after `forward` is in the step, as in most programs."""

    def __init__(self, rate: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.left, self.right, self.head = branch(6), branch(4), nn.Linear(16, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return scores of classes."""
        return self.head(torch.cat([self.left(left), self.right(right)], dim=1))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Return the loss, and log it with the share of right answers."""
        scores = self(batch["left"].flatten(1), batch["right"])
        loss = functional.cross_entropy(scores, batch["label"])
        self.log("train_loss", loss, prog_bar=True)
        right = (scores.argmax(1) == batch["label"]).float().mean()
        self.log_dict({"train_right": right}, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Log the loss."""
        scores = self(batch["left"].flatten(1), right=batch["right"])
        self.log("val_loss", functional.cross_entropy(scores, batch["label"]))

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Return the classes."""
        return self(batch["left"].flatten(1), batch["right"]).argmax(1)

    def configure_optimizers(self) -> Any:
        """Return an optimizer with two groups, and a schedule by steps."""
        groups = [
            {"params": [*self.left.parameters(), *self.right.parameters()], "weight_decay": 0.1},
            {"params": [*self.head.parameters()], "lr": 2e-2},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.hparams["rate"])
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Pairs(Dataset[dict[str, Tensor]]):
    """Pairs with a label."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.left = torch.randn(count, 2, 3, generator=generator)
        self.right = torch.randn(count, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        left, right = self.left[index], self.right[index]
        return {"left": left, "right": right, "label": (left.sum() > right.sum()).long()}


class PairsModule(LightningDataModule):
    """The data of all loops."""

    def train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        """Return mini-batches, the last of which is smaller."""
        return DataLoader(Pairs(SAMPLES, 1), batch_size=BATCH, shuffle=True)

    def val_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        """Return mini-batches."""
        return DataLoader(Pairs(10, 2), batch_size=4)

    predict_dataloader = val_dataloader


def fit(folder: Path, *, pipeline: bool, checkpoint: str | None = None, **more: Any) -> dict[str, Any]:
    """Train, and return what was logged, the weights, and the answers after the training.

    Args:
        folder: of logs and checkpoints.
        pipeline: whether a pipeline of two stages trains it.
        checkpoint: to resume from.
        more: arguments of the Trainer.
    """
    torch.manual_seed(3)
    module = TwoBranches()
    given: dict[str, Any] = {"max_epochs": 2, "gradient_clip_val": 0.5, "log_every_n_steps": 1, **more}
    if pipeline:
        given["strategy"] = PipelineStrategy(plan=two_stages, cluster="local:2", device="cpu")
    else:
        given["devices"] = 1
    trainer = Trainer(
        accelerator="cpu",
        default_root_dir=str(folder),
        logger=CSVLogger(str(folder), name="log"),
        enable_progress_bar=False,
        enable_model_summary=False,
        **given,
    )
    trainer.fit(module, datamodule=PairsModule(), ckpt_path=checkpoint)
    weights = {name: each.detach().clone() for name, each in module.state_dict().items()}
    predicted: Any = trainer.predict(module, datamodule=PairsModule())
    logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
    saved: Any = trainer.checkpoint_callback
    return {
        "logged": logged,
        "weights": weights,
        "answers": torch.cat(predicted),
        "checkpoint": saved.best_model_path,
        "log": csv_of(folder),
    }


def csv_of(folder: Path) -> str:
    """Return the newest log of a folder."""
    logs = sorted(folder.glob("log/version_*/metrics.csv"), key=lambda path: path.stat().st_mtime)
    return logs[-1].read_text() if logs else ""


def fit_on_ranks(folder: str) -> dict[str, Any]:
    """Train on this rank of two."""
    as_torchrun()
    return fit(Path(folder), pipeline=True, devices=2)
