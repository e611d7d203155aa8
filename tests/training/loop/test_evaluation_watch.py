"""The best evaluation, patience, and settings that cannot be followed."""

import math
from pathlib import Path

import pytest

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.training.config.evaluation_settings import EvaluationSettings
from graphpipe.training.loop.evaluation_watch import EvaluationWatch, forget_best_after
from graphpipe.training.run_folder.evaluations_log import EvaluationMetrics


def noted(settings: EvaluationSettings, *losses: float) -> EvaluationWatch:
    watch = EvaluationWatch(settings)
    for step, loss in enumerate(losses, start=1):
        watch.note(step, {"loss": loss, "accuracy": 1 - loss})
    return watch


def test_the_least_loss_is_the_best_and_an_equal_one_is_not_better() -> None:
    watch = noted(EvaluationSettings(patience=2), 0.5, math.nan, 0.4, 0.4)
    assert (watch.best_step, watch.best, watch.worse, watch.why_stop) == (3, 0.4, 1, "")
    watch = noted(EvaluationSettings(patience=2, min_delta=0.2), 0.5, 0.4, 0.35)
    assert watch.why_stop == "loss has not become better since step 1, in 2 evaluations"
    watch = noted(EvaluationSettings(watch="accuracy"), 0.5, 0.4, 0.6)
    assert (watch.best_step, watch.best) == (2, 0.6)
    watch = noted(EvaluationSettings(patience=1), math.nan)
    assert watch.why_stop == "loss has not become better yet, in 1 evaluations"


def test_a_figure_that_evaluations_do_not_have_is_named() -> None:
    with pytest.raises(InvalidInput, match="is 'acuracy', which the evaluations do not have"):
        noted(EvaluationSettings(watch="acuracy", mode="max"), 0.5)
    with pytest.raises(InvalidInput, match=r"evaluation\.mode: is not given, and evaluation\.watch is 'f1'"):
        EvaluationSettings(watch="f1")
    with pytest.raises(InvalidInput, match=r"average_decay: is 1\.0, must be between 0 and 1"):
        EvaluationSettings(average_decay=1.0)


def test_a_resumed_training_knows_what_was_the_best_unless_its_checkpoint_is_gone(tmp_path: Path) -> None:
    """A checkpoint of a later step than that at which a run goes on belongs to steps that are repeated."""
    settings = EvaluationSettings(keep_best=True)
    before = [EvaluationMetrics(step=step, loss=loss) for step, loss in ((2, 0.3), (4, 0.5))]
    for step in (2, 6):
        (tmp_path / f"step-0000000{step}").mkdir()
    forget_best_after(tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    watch = EvaluationWatch.after(settings, before, tmp_path)
    assert (watch.best_step, watch.best, watch.worse) == (2, 0.3, 1)
    forget_best_after(tmp_path, 1)
    assert EvaluationWatch.after(settings, before, tmp_path).best is None


def test_what_follows_evaluations_needs_some(config: Path) -> None:
    for overrides, sentence in (
        (["evaluation.keep_best=true"], r"evaluation: follows the evaluations .*makes none. Set train\.eval_every"),
        (["lr_schedule.name=ReduceLROnPlateau"], r"lr_schedule\.name: follows the evaluations"),
        (
            ["lr_schedule.name=reducelronplateau", "lr_schedule.warmup_steps=3", "train.eval_every=1"],
            r"warmup_steps: is 3, and the rates of reducelronplateau change only after evaluations",
        ),
        (["train.callbacks=[nothing]"], r"train\.callbacks: unknown callback 'nothing'"),
        (["optimizer.groups=[{match = ['c.*'], lr = 0.1}]"], r"'c\.\*' matches no parameter"),
        (["optimizer.groups=[{match = ['*'], decay = 0.1}]"], r"optimizer\.groups.*decay"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            gp.train(config, overrides=overrides, tell=None)
    assert not Path("runs").exists()
