"""GPT-2 with what users add to a model for fine-tuning: adapters, prompts, checkpointed activations."""

from collections.abc import Callable

import peft
import torch
from run_trainers import gpt2
from torch import nn


def adapted(config: peft.PeftConfig) -> nn.Module:
    """Return GPT-2 with adapters whose values are not zero, so that gradients of all of them are not either."""
    model = gpt2()
    torch.manual_seed(1)
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def lora() -> nn.Module:
    """LoRA."""
    return adapted(peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM", fan_in_fan_out=True))


def dora() -> nn.Module:
    """DoRA: LoRA with a trained magnitude of each column."""
    config = peft.LoraConfig(
        r=4, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM", use_dora=True, fan_in_fan_out=True
    )
    return adapted(config)


def ia3() -> nn.Module:
    """IA3: trained factors of activations."""
    config = peft.IA3Config(
        target_modules=["c_attn", "mlp.c_proj"],
        feedforward_modules=["mlp.c_proj"],
        task_type="CAUSAL_LM",
        fan_in_fan_out=True,
    )
    return adapted(config)


def prompt() -> nn.Module:
    """Prompt tuning: trained tokens before the text."""
    return adapted(peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))


def checkpointed() -> nn.Module:
    """Layers whose activations are computed again in the backward."""
    model = gpt2()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def modules_to_save() -> nn.Module:
    """LoRA beside a head that is trained as a whole, as of a new vocabulary."""
    config = peft.LoraConfig(
        r=4, target_modules=["c_attn"], modules_to_save=["ln_f"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    return adapted(config)


ADAPTED: dict[str, Callable[[], nn.Module]] = {
    "lora": lora,
    "dora": dora,
    "ia3": ia3,
    "prompt": prompt,
    "checkpointed": checkpointed,
    "modules_to_save": modules_to_save,
}
