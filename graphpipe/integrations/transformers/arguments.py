"""Which training arguments a pipeline honours. The others are refused by name before the first step.

Every field of `TrainingArguments` and `Seq2SeqTrainingArguments` is in one of these tables. A field that a later
version of transformers adds is refused too, if it is not at its default, until someone has decided on it.
"""

import copy
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import Seq2SeqTrainingArguments, TrainingArguments

from graphpipe.errors import InvalidInput
from graphpipe.graph import Precision

_SHARDS = "The plan decides which rank holds what. Give PipelineTrainer a `plan` or a `cluster` instead."
_NO_DDP = "No model is wrapped: the plan's replicas sum their gradients."
_EAGER = "Leave it out: stages run the model's own submodules eagerly."
_OWN_UPDATE = "Take an optimizer of torch: optim='adamw_torch', or pass `optimizers`."
REFUSED: Mapping[str, str] = {
    "fsdp": _SHARDS,
    "fsdp_config": _SHARDS,
    "deepspeed": _SHARDS,
    "parallelism_config": _SHARDS,
    "ddp_find_unused_parameters": _NO_DDP,
    "ddp_bucket_cap_mb": _NO_DDP,
    "ddp_broadcast_buffers": _NO_DDP,
    "ddp_static_graph": _NO_DDP,
    "torch_compile": _EAGER,
    "torch_compile_backend": _EAGER,
    "torch_compile_mode": _EAGER,
    "use_liger_kernel": _EAGER,
    "liger_kernel_config": _EAGER,
    "fp16": "Take bf16=True: the scale of the loss would be both the pipeline's and accelerate's.",
    "neftune_noise_alpha": "Leave it out: its noise would differ from that of one process.",
    "auto_find_batch_size": "Set per_device_train_batch_size: the plan says whether it fits.",
    "torch_empty_cache_steps": "Leave it out.",
    "optim_target_modules": _OWN_UPDATE,
    "enable_jit_checkpoint": "Take save_steps: ranks that receive the signal at different steps would wait for ever.",
    "debug": "Leave it out: a rank does not run the whole model.",
    "sortish_sampler": "Take train_sampling_strategy='group_by_length'.",
}
"""Fields that must be at their defaults, and what to do instead."""
PRECISIONS: Mapping[str, Precision] = {"no": "fp32", "bf16": "bf16"}
"""The precision of the pipeline, by `TrainingArguments.mixed_precision`."""
VALUES: Mapping[str, tuple[frozenset[str], str]] = {
    "optim": (frozenset({"adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"}), _OWN_UPDATE),
    "train_sampling_strategy": (
        frozenset({"random", "sequential", "group_by_length"}),
        "Take 'group_by_length': the ranks read the same batches, so none can be balanced between them.",
    ),
}
"""Fields of which a pipeline honours some values."""
HONOURED = frozenset(
    {
        *("output_dir", "do_train", "do_eval", "do_predict", "resume_from_checkpoint", "local_rank", "use_cpu"),
        *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps"),
        *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "optim_args", "weight_decay"),
        *("adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor"),
        *("average_tokens_across_devices", "bf16", "bf16_full_eval", "fp16_full_eval", "tf32", "use_cache"),
        *("activation_checkpointing", "activation_checkpointing_kwargs"),
        *("gradient_checkpointing", "gradient_checkpointing_kwargs"),
        *("logging_strategy", "logging_steps", "logging_first_step", "log_on_each_node", "logging_nan_inf_filter"),
        *("include_num_input_tokens_seen", "log_level", "log_level_replica", "disable_tqdm", "report_to", "run_name"),
        *("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        *("eval_strategy", "eval_steps", "eval_delay", "per_device_eval_batch_size", "prediction_loss_only"),
        *("eval_on_start", "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"),
        *("include_for_metrics", "batch_eval_metrics"),
        *("save_only_model", "save_strategy", "save_steps", "save_on_each_node", "save_total_limit"),
        *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
        *("hub_revision", "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "ignore_data_skip"),
        *("restore_callback_states_from_checkpoint", "full_determinism", "seed", "data_seed"),
        *("dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order"),
        *("remove_unused_columns", "label_names", "length_column_name", "ddp_backend", "ddp_timeout"),
        *("skip_memory_metrics", "accelerator_config"),
        *("predict_with_generate", "generation_max_length", "generation_num_beams", "generation_config"),
    }
)
"""Fields that `Trainer` and the pipeline follow."""


def check_arguments(args: TrainingArguments) -> None:
    """Check that a pipeline honours training arguments.

    Raises:
        InvalidInput: names the first field that it does not honour, and the remedy.
    """
    known = {each.name for kind in (TrainingArguments, Seq2SeqTrainingArguments) for each in fields(kind)}
    kind = Seq2SeqTrainingArguments if isinstance(args, Seq2SeqTrainingArguments) else TrainingArguments
    defaults = kind(output_dir=args.output_dir, use_cpu=args.use_cpu, report_to="none")
    for name in sorted(each.name for each in fields(args) if each.name in known - HONOURED):
        value = getattr(args, name)
        if name in VALUES:
            allowed, remedy = VALUES[name]
            if str(getattr(value, "value", value)) not in allowed:
                raise _not_honoured(name, value, remedy)
        elif value != getattr(defaults, name, None):
            remedy = REFUSED.get(name, "Leave it at its default: this version of GraphPipe does not know the field.")
            raise _not_honoured(name, value, remedy)
    if args.mixed_precision not in PRECISIONS:  # accelerate's configuration may ask for it
        raise _not_honoured("mixed_precision", args.mixed_precision, REFUSED["fp16"])
    config: Any = args.accelerator_config
    for name in ("split_batches", "dispatch_batches", "gradient_accumulation_kwargs"):
        if value := getattr(config, name, None):
            remedy = "Leave it out: every rank reads the same batches, and their accumulation is the plan's."
            raise _not_honoured(f"accelerator_config.{name}", value, remedy)


def of_one_step(args: TrainingArguments) -> TrainingArguments:
    """Return the arguments with what would be accumulated as one mini-batch, which the plan divides into micro-batches.

    The mini-batch has `per_device_train_batch_size * gradient_accumulation_steps` samples on any number of ranks.
    """
    merged = copy.copy(args)
    merged.per_device_train_batch_size *= args.gradient_accumulation_steps
    merged.gradient_accumulation_steps = 1
    vars(merged)["_n_gpu"] = min(args.n_gpu, 1)  # as `Trainer` sets it where DataParallel must not wrap the model
    return merged


def _not_honoured(name: str, value: object, remedy: str) -> InvalidInput:
    return InvalidInput(
        f"is {getattr(value, 'value', value)!r}, which a pipeline does not honour", where=name, remedy=remedy
    )
