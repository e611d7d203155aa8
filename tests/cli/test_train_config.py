"""Training configurations: defaults, overrides and mistakes."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_cases import CONFIG

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.config.optimizer_settings import OptimizerSettings, ScheduleSettings
from graphpipe.training.config.optimizers import build_optimizer, scheduler_factory
from graphpipe.training.config.settings import TrainConfig, TrainSettings
from graphpipe.training.config.sources import leaves
from graphpipe.training.config.suggestions import OTHER_NAMES, suggestion


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(CONFIG)
    return tmp_path / "tiny.toml"


def test_defaults_and_overrides(file: Path) -> None:
    config = read_config(file, ["train.steps=50", "plan.planner=spp", "optimizer.lr=1e-2", "run.name='other'"])
    assert (config.train.steps, config.plan.planner, config.optimizer.lr) == (50, "spp", 0.01)
    assert (config.run.name, config.run.directory, config.folder) == ("other", "runs", str(file.parent))
    assert read_config(file).run.name == "tiny"


def test_a_saved_configuration_loads_unchanged(file: Path, tmp_path: Path) -> None:
    config = read_config(file)
    config.save(tmp_path / "config.json")
    assert TrainConfig.load(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.stps=3", "unknown key 'train.stps'. Did you mean 'steps'?"),
        ("optimiser.lr=3", "unknown key 'optimiser'. Did you mean 'optimizer'?"),
        ("lr=3", "unknown key 'lr'. Did you mean 'optimizer.lr'?"),
        ("train.lr=3", "unknown key 'train.lr'. Did you mean 'optimizer.lr'?"),
        ("train.sheduler=cosine", "unknown key 'train.sheduler'. Did you mean 'lr_schedule.name'?"),
        ("train.accumulate=4", "unknown key 'train.accumulate'. Did you mean 'plan.micro_batch'?"),
        ("optimizer.learning_rate=3", "Did you mean 'optimizer.lr'?"),
        ("plan.batchsize=3", "Did you mean 'train.batch_size'?"),
        ("train.zzzz=3", "unknown key 'train.zzzz'. Known: balance, batch_size, callbacks, check,"),
        ("train.batch_size=0", "train.batch_size: is 0, must be at least 1"),
        ("train.batch_size=many", "train.batch_size"),
        ("optimizer.lr=nan", "optimizer.lr: is nan, must be positive and finite"),
        ("optimizer.name=adamm", "optimizer.name: torch.optim has no 'adamm'. Did you mean 'adam'?"),
        ("optimizer.name=lbfgs", "LBFGS computes the loss several times in a step"),
        ("optimizer.momentum=0.9", "optimizer.momentum: is 0.9, and AdamW has none. Leave it out."),
        ("optimizer.arguments={beta=1}", "optimizer.arguments: AdamW takes no 'beta'. Did you mean 'betas'?"),
        ("optimizer.arguments={lr=1}", "optimizer.arguments: has lr. Set optimizer.lr."),
        ("optimizer.arguments={betas=[2, 3]}", "optimizer: AdamW refuses its arguments: ValueError: Invalid beta"),
        ("lr_schedule.name=steplrr", "torch.optim.lr_scheduler has no 'steplrr'. Did you mean 'steplr'?"),
        ("lr_schedule.name=LambdaLR", "LambdaLR needs functions or other schedules. Return it from the task"),
        ("lr_schedule.name=ReduceLROnPlateau", "follows the evaluations of the training, which makes none"),
        ("lr_schedule.arguments={gamma=1}", "lr_schedule.arguments: 'constant' takes no 'gamma'"),
        ("train.clip_norm=-1", "train.clip_norm"),
        ("train=3", "train"),
        ("train.engine=dpp", "train.engine"),
        ("train.precision=bf32", "train.precision"),
        ("task.name=3", "'task' is not a section"),
        ("train.clip_norm.deep.in.it=3", "'train.clip_norm' is not a section"),
        ("folder=3", "tiny.toml, field folder: Input should be a valid string (found 3)"),
        ("folder=['/etc']", "tiny.toml, field folder: Input should be a valid string (found ['/etc'])"),
        (f"train.steps={'9' * 5000}", "override train.steps: holds a value that this program does not read: "),
        (f"train.steps={'[' * 5000}", "override train.steps: holds a value that this program does not read: "),
        (f"{'a.' * 5000}b=1", "unknown key 'a'"),
        ("steps", "'steps' is not an override. Write section.key=value."),
    ],
)
def test_a_value_that_cannot_be_used_is_named(file: Path, override: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_config(file, [override])
    assert sentence in str(caught.value)


def test_words_of_a_list_need_no_quotation_marks(file: Path) -> None:
    """A shell takes them away, and `train.loggers=[wandb]` was refused."""
    for text in ("[wandb, tensorboard]", "['wandb', 'tensorboard']", '["wandb","tensorboard"]'):
        assert read_config(file, [f"train.loggers={text}"]).train.loggers == ("wandb", "tensorboard")
    assert read_config(file, ["train.loggers=[]"]).train.loggers == ()


@pytest.mark.parametrize(("text", "sentence"), [("task = ", "not valid TOML"), ('task = "a"', "cluster")])
def test_a_bad_file_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InvalidInput, match=r"bad\.toml") as caught:
        read_config(tmp_path / "bad.toml")
    assert sentence in str(caught.value)


def test_an_engine_that_always_shards_refuses_shard_optimizer(file: Path) -> None:
    assert read_config(file, ["train.engine=fsdp2"]).train.engine == "fsdp2"
    with pytest.raises(InvalidInput, match=r"train\.shard_optimizer: is true, and engine 'fsdp2' shards"):
        read_config(file, ["train.engine=fsdp2", "train.shard_optimizer=true"])


def test_neither_steps_nor_epochs(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(CONFIG.replace("steps = 6", ""))
    with pytest.raises(InvalidInput, match="neither steps nor epochs"):
        read_config(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("name", "expected"), [("constant", [1 / 3, 2 / 3, 1, 1, 1, 1]), ("cosine", [1 / 3, 2 / 3, 1, 0.75, 0.25, 0])]
)
def test_learning_rates(name: str, expected: list[float]) -> None:
    settings = ScheduleSettings(name=name, warmup_steps=2)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = scheduler_factory(settings, steps=5)(optimizer)
    rates: list[float] = []
    for _ in expected:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx(expected, abs=1e-9)


def test_optimizers() -> None:
    parameters = [torch.zeros(1, requires_grad=True)]
    settings = OptimizerSettings(name="sgd", lr=0.5, momentum=0.9, weight_decay=0.1)
    built = build_optimizer(settings, parameters)
    assert isinstance(built, torch.optim.SGD)
    assert {key: built.defaults[key] for key in ("lr", "momentum", "weight_decay")} == {
        "lr": 0.5,
        "momentum": 0.9,
        "weight_decay": 0.1,
    }
    assert type(build_optimizer(OptimizerSettings(name="radam"), parameters)) is torch.optim.RAdam
    assert type(build_optimizer(OptimizerSettings(name="adam"), parameters)) is torch.optim.Adam
    assert type(build_optimizer(OptimizerSettings(), parameters)) is torch.optim.AdamW


def test_every_optimizer_and_schedule_of_torch_is_found_by_name() -> None:
    """There were four optimizers without betas, and two schedules."""
    parameters = [torch.zeros(2, 2, requires_grad=True)]
    names = [name for name in torch.optim.__all__ if inspect.isclass(getattr(torch.optim, name))]
    optimizers = {*names} - {"Optimizer", "LBFGS"}
    assert len(optimizers) > 12
    for name in optimizers:
        for spelt in (name, name.lower()):
            assert type(build_optimizer(OptimizerSettings(name=spelt), parameters)) is getattr(torch.optim, name)
    settings = OptimizerSettings(name="SGD", momentum=0.9, arguments={"nesterov": True})
    assert build_optimizer(settings, parameters).defaults["nesterov"]
    adam = build_optimizer(OptimizerSettings(name="adam", arguments={"betas": [0.8, 0.9]}), parameters)
    assert adam.defaults["betas"] == (0.8, 0.9)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("StepLR", {"step_size": 2}, [1, 1, 0.1, 0.1, 0.01]),
        ("multisteplr", {"milestones": [1, 3], "gamma": 0.5}, [1, 0.5, 0.5, 0.25, 0.25]),
        ("CosineAnnealingLR", {}, [1, 0.9045085, 0.6545085, 0.3454915, 0.0954915]),
    ],
)
def test_a_schedule_of_torch_takes_its_length_from_the_training(
    name: str, arguments: dict[str, Any], expected: list[float]
) -> None:
    for warmup in (0, 3):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        settings = ScheduleSettings(name=name, arguments=arguments, warmup_steps=warmup)
        schedule = scheduler_factory(settings, steps=5 + warmup)(optimizer)
        rates: list[float] = []
        for _ in range(5 + warmup):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        assert rates == pytest.approx([0.25, 0.5, 0.75][:warmup] + expected)


def test_the_names_of_other_tools_lead_to_settings_that_there_are() -> None:
    config = TrainConfig(task="a:b", cluster="c", train=TrainSettings(batch_size=1, steps=1))
    settings = {".".join(key): value for key, value in leaves(to_body(config))}
    for setting, names in OTHER_NAMES.items():
        assert setting in settings
        for name in names:
            assert f"'{setting}'" in suggestion(name, [], TrainConfig)
