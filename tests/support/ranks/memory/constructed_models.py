"""Models whose constructors fill parameters in their own ways, as functions that build them."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

WIDE = 48


class ScaledGpt(nn.Module):
    """GPT as nanoGPT builds it: `apply` draws all weights again, and then the projections of a layer once more."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(64, WIDE), nn.Embedding(16, WIDE)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(WIDE), "inner": nn.Linear(WIDE, 96), "c_proj": nn.Linear(96, WIDE)})
            for _ in range(4)
        )
        self.head = nn.Linear(WIDE, 64, bias=False)
        self.head.weight = self.words.weight
        self.apply(self._draw)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(8))

    def _draw(self, part: nn.Module) -> None:
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


class Patches(nn.Module):
    """A vision model as timm builds them: truncated normals, parameters made of numbers, and a head of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDE, 4, stride=4)
        self.position = nn.Parameter(torch.randn(1, 17, WIDE) * 0.02)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDE))
        self.scale = nn.Parameter(1e-5 * torch.ones(WIDE))
        self.mix, self.head = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 10)
        nn.init.trunc_normal_(self.first, std=0.02)
        nn.init.trunc_normal_(self.mix.weight, std=0.02, a=-0.03, b=0.03)
        nn.init.zeros_(self.head.weight)
        weight = self.patch.weight.data
        nn.init.xavier_uniform_(weight.view(weight.shape[0], -1))


class Recurrent(nn.Module):
    """Orthogonal weights, a gate whose bias is 1, a padded embedding, and a matrix that NumPy draws."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, WIDE, padding_idx=3)
        nn.init.normal_(self.words.weight, std=0.1)
        with torch.no_grad():
            self.words.weight[3].zero_()
        self.inner = nn.LSTM(WIDE, WIDE)
        for name, parameter in self.inner.named_parameters():
            if "weight_hh" in name:
                for gate in range(4):
                    nn.init.orthogonal_(parameter[gate * WIDE : (gate + 1) * WIDE])
            elif "bias_ih" in name:
                parameter.data.fill_(0)
                parameter.data[WIDE : 2 * WIDE].fill_(1)
        self.drawn = nn.Parameter(torch.from_numpy(np.random.standard_normal((WIDE, WIDE))).float())
        self.kernel = nn.Parameter(torch.tensor([1.0, 2.0, 1.0]).outer(torch.tensor([-1.0, 0.0, 1.0])))


class Normed(nn.Module):
    """Weights in two parts, by either way of torch, and a spectral norm, whose buffers follow from the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.old = nn.utils.weight_norm(nn.Linear(WIDE, WIDE))
        self.new = parametrizations.weight_norm(nn.Conv1d(WIDE, 8, 3))
        self.spectral = parametrizations.spectral_norm(nn.Linear(WIDE, WIDE))


class Copies(nn.Module):
    """Layers that are copied, a target network that begins as the other, and a frozen random projection."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDE, 4, 96)
        nn.init.normal_(layer.linear1.weight, std=0.3)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.online, self.target = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.target.load_state_dict(self.online.state_dict())
        self.frozen = copy.deepcopy(self.online).requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDE)
        nn.init.zeros_(self.norm.weight)
        self.projection: Tensor
        self.register_buffer("projection", torch.randn(WIDE, 8))


def gpt2() -> nn.Module:
    """Return GPT-2 of Hugging Face."""
    import transformers as hf

    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=96, n_positions=32, n_embd=WIDE, n_layer=3, n_head=4))


def llama() -> nn.Module:
    """Return Llama of Hugging Face."""
    import transformers as hf

    sizes: dict[str, Any] = {"hidden_size": WIDE, "intermediate_size": 96, "num_hidden_layers": 2}
    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=96, num_attention_heads=4, num_key_value_heads=2, **sizes))


def t5() -> nn.Module:
    """Return T5 of Hugging Face."""
    import transformers as hf

    return hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=96, d_model=WIDE, d_kv=12, d_ff=96, num_layers=2, num_heads=4)
    )


def vit() -> nn.Module:
    """Return ViT of Hugging Face."""
    import transformers as hf

    sizes: dict[str, Any] = {"hidden_size": WIDE, "intermediate_size": 96, "num_hidden_layers": 2}
    return hf.ViTForImageClassification(hf.ViTConfig(num_attention_heads=4, image_size=16, patch_size=4, **sizes))


def _of(kind: type[nn.Module]) -> Callable[[], nn.Module]:
    return lambda: kind()


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{kind.__name__: _of(kind) for kind in (ScaledGpt, Patches, Recurrent, Normed, Copies)},
    **{each.__name__: each for each in (gpt2, llama, t5, vit)},
}
"""By name. Those of Hugging Face begin with a small letter."""
