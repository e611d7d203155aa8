"""What a misspelt setting was meant to be: also in another section, or as other tools call it."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from graphpipe.errors import nearest

OTHER_NAMES = {
    "optimizer.lr": ("learning_rate",),
    "optimizer.weight_decay": ("wd", "decay"),
    "optimizer.name": ("optim", "optimizer_name"),
    "lr_schedule.name": ("scheduler", "lr_scheduler", "lr_scheduler_type", "schedule"),
    "lr_schedule.warmup_steps": ("warmup", "num_warmup_steps"),
    "plan.micro_batch": ("accumulate", "accumulation_steps", "gradient_accumulation_steps", "accumulate_grad_batches"),
    "train.batch_size": ("batch", "bs", "per_device_train_batch_size", "global_batch_size"),
    "train.steps": ("max_steps", "num_steps", "iterations"),
    "train.epochs": ("max_epochs", "num_epochs", "num_train_epochs"),
    "train.precision": ("dtype", "amp", "mixed_precision", "fp16", "bf16"),
    "train.clip_norm": ("max_grad_norm", "gradient_clip_val", "clip_grad_norm", "clip"),
    "train.checkpoint_every": ("save_steps", "save_every", "checkpoint_interval"),
    "train.keep": ("save_total_limit",),
    "train.eval_every": ("eval_steps", "evaluate_every", "val_check_interval", "validate_every"),
    "train.workers": ("num_workers", "dataloader_num_workers"),
    "train.prefetch": ("prefetch_factor",),
    "train.loggers": ("logger", "log", "report_to"),
    "train.shard_optimizer": ("zero", "zero1"),
    "optimizer.groups": ("param_groups", "parameter_groups", "no_decay"),
    "evaluation.watch": ("metric_for_best_model", "monitor", "metric"),
    "evaluation.keep_best": ("load_best_model_at_end", "save_best", "save_top_k"),
    "evaluation.patience": ("early_stopping_patience", "early_stopping", "early_stop"),
    "evaluation.average_decay": ("ema", "ema_decay", "swa", "average"),
    "run.directory": ("output_dir", "out_dir", "default_root_dir"),
}
"""What others call a setting."""
_CLOSE = 0.75
"""How alike the name of a setting in another section must be."""


def suggestion(key: str, known: list[str], root: Any) -> str:
    """Return what an unknown key was meant to be, as the end of an error sentence.

    Args:
        key: with its sections, such as `train.sheduler`.
        known: the names in its section.
        root: the dataclass of the whole configuration.
    """
    name, of_name = key.rpartition(".")[2], _by_name(root)
    if name not in of_name and get_close_matches(name, known, n=1, cutoff=_CLOSE):
        return nearest(name, known)
    close = [name] if name in of_name else get_close_matches(name, [*of_name], n=1, cutoff=_CLOSE)
    if not close:
        return nearest(name, known)
    meant = " or ".join(f"'{path}'" for path in of_name[close[0]])
    return f"Did you mean {meant}? Known: {', '.join(sorted(known))}."


def _by_name(root: Any) -> dict[str, list[str]]:
    # The settings that a name may mean, in any section.
    found: dict[str, list[str]] = {}
    for path in _paths(root):
        for name in (path.rpartition(".")[2], *OTHER_NAMES.get(path, ())):
            found.setdefault(name, []).append(path)
    return found


def _paths(kind: Any, prefix: str = "") -> Iterator[str]:
    for each in fields(kind):
        if is_dataclass(each.type):
            yield from _paths(each.type, f"{prefix}{each.name}.")
        else:
            yield f"{prefix}{each.name}"
