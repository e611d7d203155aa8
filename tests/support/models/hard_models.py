"""Small models, each with one property that makes splitting hard."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphpipe.model import DagModule

Batch = dict[str, Tensor]


def mlp() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(6, 3))


def floats(name: str, *shape: int):
    return lambda samples: {name: torch.randn(samples, *shape)}


class Encoder(nn.Module):
    """torch's own transformer layers behind an embedding with positions."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.token = nn.Embedding(50, 8)
        self.position = nn.Embedding(7, 8)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True) for _ in range(3)]
        )
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.triu(torch.full((tokens.shape[1], tokens.shape[1]), float("-inf"), device=tokens.device), 1)
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x[:, -1])


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=padding[:, None, :]))


class Block(nn.Module):
    """A hand-written pre-norm block, whose residual additions are glue."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), padding)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """All blocks read a mask computed from the model input; positions are a parameter of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(40, 8)
        self.position = nn.Parameter(torch.randn(5, 8) / 10)
        self.blocks = nn.ModuleList([Block(8) for _ in range(3)])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 40, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        padding = tokens != 0
        for block in self.blocks:
            x = block(x, padding)
        return self.head(self.norm(x))


def words(name: str, count: int, *shape: int):
    return lambda samples: {name: torch.randint(1, count, (samples, *shape))}


class Contrast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        return F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).T * self.scale.exp()


def two_tower() -> DagModule:
    image = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 6))
    text = nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 6))
    feeds = {"image": ["pixels"], "text": ["tokens"], "head": ["image", "text"]}
    return DagModule({"image": image, "text": text, "head": Contrast()}, feeds, whole_batch=["head"])


def pairs(samples: int) -> Batch:
    return {"pixels": torch.randn(samples, 1, 4, 4), "tokens": torch.randint(0, 30, (samples, 3))}


class ConvBlock(nn.Module):
    """A residual block with an in-place activation and an in-place addition, as in torchvision."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.skip(x)
        return self.relu(out)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.blocks = nn.Sequential(ConvBlock(4), ConvBlock(4))
        self.head = nn.Linear(4, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(pixels)).mean((2, 3)))


class Dlrm(nn.Module):
    """Embedding bags with integer inputs, and pairwise products."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(20, 4, mode="sum") for _ in range(3)])
        self.bottom = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        bags = [bag(sparse[:, position]) for position, bag in enumerate(self.bags)]
        features = torch.stack([x, *bags], 1)
        products = features @ features.transpose(1, 2)
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([x, products[:, rows, columns]], 1)).squeeze(1)


def clicks(samples: int) -> Batch:
    return {"dense": torch.randn(samples, 5), "sparse": torch.randint(0, 20, (samples, 3, 2))}


class Several(nn.Module):
    """Several outputs, and an in-place activation of a value that is read before and after it."""

    def __init__(self, kind: type = dict) -> None:
        super().__init__()
        self.kind = kind
        self.one, self.two, self.three = (nn.Linear(5, 5) for _ in range(3))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> object:
        x = self.one(x)
        before = self.two(x * 2)
        after = self.relu(x)
        both = self.three(x + after)  # x is already rectified
        return {"before": before, "both": both, "n": 3} if self.kind is dict else (before, (both, None))


class InPlaceGlue(nn.Module):
    """In-place glue: on a value that is read elsewhere, through a view, and on an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        z = self.two(y)
        y = y * 1
        y[:, 0] = z[:, 1]
        view = y.view(-1, 2, 3)
        view.mul_(2)
        return self.three(torch.relu_(y)) + z


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)).requires_grad_(False)
        self.live = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
        self.head = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.frozen(x), self.live(x)], 1))


class Twice(nn.Module):
    """Calls a nested submodule twice, with arguments by position, by name and by default."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Scaled(), nn.Tanh())
        self.step = Scaled()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(self.inner(x))
        return self.head(self.step(x, factor=2.0) + self.step(x))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
        return self.linear(x) * factor


class SequenceFirst(nn.Module):
    """Transposes its input, so that samples are the second dimension inside."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(4, 6)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.recurrent(x.transpose(0, 1))
        flat = self.inner(out).reshape(-1, 6)
        return self.head(flat.view(out.shape[0], out.shape[1], 6).mean(0))


class Constant(nn.Module):
    """Reads a plain tensor attribute, a tensor made in the forward, a buffer, and a child's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.plain = torch.arange(4.0)
        self.shift: Tensor
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x) * self.plain + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return F.linear(self.two(x), self.one.weight.detach()) + self.shift


MODELS = {
    "mlp": (mlp, floats("input", 6)),
    "encoder": (Encoder, words("tokens", 50, 7)),
    "gpt": (Gpt, words("tokens", 40, 5)),
    "two_tower": (two_tower, pairs),
    "conv_net": (ConvNet, floats("pixels", 1, 6, 6)),
    "dlrm": (Dlrm, clicks),
    "several_dict": (Several, floats("x", 5)),
    "several_tuple": (lambda: Several(tuple), floats("x", 5)),
    "in_place_glue": (InPlaceGlue, floats("x", 6)),
    "frozen": (Frozen, floats("x", 5)),
    "twice": (Twice, floats("x", 4)),
    "sequence_first": (SequenceFirst, floats("x", 5, 4)),
    "constant": (Constant, floats("x", 4)),
}
