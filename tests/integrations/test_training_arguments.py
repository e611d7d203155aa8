"""Every training argument is honoured, or refused by name before the first step."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="an optional extra: pip install graphpipe-torch[trainer]")

from run_trainers import Samples, arguments, gpt2
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from graphpipe.errors import InvalidInput
from graphpipe.integrations.transformers import PipelineTrainer
from graphpipe.integrations.transformers import arguments as tables
from graphpipe.integrations.transformers.arguments import HONOURED, REFUSED, VALUES, check_arguments

OTHER: dict[str, Any] = {
    "fsdp": ["full_shard"],
    "fsdp_config": {"min_num_params": 5},
    "deepspeed": {"zero_optimization": {"stage": 2}},
    "parallelism_config": object(),
    "liger_kernel_config": {"rope": True},
    "optim_target_modules": ["attn"],
    "debug": ["underflow_overflow"],
    "optim": "lomo",
    "train_sampling_strategy": "batch_rebalance",
    "torch_compile_backend": "inductor",
    "torch_compile_mode": "default",
}
"""A value that is not the default, by field. Other fields are switched, or get a number."""


def test_every_field_is_in_one_table() -> None:
    known = [each.name for each in fields(Seq2SeqTrainingArguments)]
    assert {each.name for each in fields(TrainingArguments)} <= {*known}
    listed = [*HONOURED, *REFUSED, *VALUES]
    assert len(listed) == len({*listed})
    assert {*known} == {*listed}


@pytest.mark.parametrize("name", sorted({*REFUSED, *VALUES}))
def test_a_field_that_is_not_honoured_is_refused_by_name(name: str, tmp_path: Path) -> None:
    args = arguments(tmp_path, Seq2SeqTrainingArguments)
    present = getattr(args, name)
    setattr(args, name, OTHER.get(name, not present if isinstance(present, bool) else 3))
    with pytest.raises(InvalidInput, match=rf"^{name}: .*does not honour\. [A-Z]"):
        check_arguments(args)


@dataclass
class OwnArguments(TrainingArguments):
    """A program's own arguments: their fields are its own affair."""

    note: str = ""


@dataclass
class LaterArguments(TrainingArguments):
    """Arguments of a later version of transformers."""

    tomorrow: int = 0


def test_a_field_of_a_later_version_is_refused_and_a_programs_own_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_arguments(arguments(tmp_path, OwnArguments, note="mine"))
    monkeypatch.setattr(tables, "TrainingArguments", LaterArguments)
    check_arguments(arguments(tmp_path, LaterArguments))
    with pytest.raises(InvalidInput, match=r"tomorrow: is 1.*does not know the field"):
        check_arguments(arguments(tmp_path, LaterArguments, tomorrow=1))


def test_the_trainer_refuses_before_it_touches_the_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="torch_compile"):
        PipelineTrainer(gpt2(), arguments(tmp_path, torch_compile=True), train_dataset=Samples(8))
    args = arguments(tmp_path, accelerator_config={"split_batches": True})
    with pytest.raises(InvalidInput, match=r"accelerator_config\.split_batches"):
        PipelineTrainer(gpt2(), args, train_dataset=Samples(8))


def test_what_would_be_accumulated_is_one_mini_batch(tmp_path: Path) -> None:
    args = arguments(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    trained = PipelineTrainer(gpt2(), args, train_dataset=Samples(20))
    assert (trained.args.per_device_train_batch_size, trained.args.gradient_accumulation_steps) == (8, 1)
    assert len(next(iter(trained.get_train_dataloader()))["labels"]) == 8
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 4)
