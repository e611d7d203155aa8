"""The examples train on two ranks, and learn. Before the first step, `check` compares the plan with plain PyTorch."""

from pathlib import Path

import pytest

import graphpipe as gp

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    ("name", "steps", "figure", "least"),
    [
        ("clicks", 60, "auc", 0.6),
        pytest.param("captions", 6, "accuracy", 0.0, marks=pytest.mark.slow),
        ("segmentation", 8, "iou", 0.0),
    ],
)
def test_an_example_trains(
    name: str, steps: int, figure: str, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [f"train.steps={steps}", f"train.eval_every={steps}"]
    run = gp.train(EXAMPLES / f"{name}.toml", overrides=overrides, tell=None)
    assert run.result.loss_last < 0.9 * run.result.loss_first
    assert run.result.metrics[figure] >= least
    assert len(run.plan.used_devices) == 2
