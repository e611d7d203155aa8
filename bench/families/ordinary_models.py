"""Small ordinary modules over images, graphs, tables and numbers, written as their authors would."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.families.ordinary_sequences import LAYERS, SAMPLES, SEQUENCES, WIDTH, noise

PATCHES = 16


class _VitBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.gamma1, self.gamma2 = (nn.Parameter(torch.full((WIDTH,), 0.5)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        query, key, value = self.qkv(self.norm1(x)).reshape(samples, length, 3, 4, -1).permute(2, 0, 3, 1, 4).unbind(0)
        found = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.gamma1 * self.proj(found)
        return x + self.gamma2 * self.mlp(self.norm2(x))


class Vit(nn.Module):
    """A vision transformer in the manner of timm, with a class token and layer scales."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, PATCHES + 1, WIDTH))
        self.blocks = nn.Sequential(*(_VitBlock() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of classes."""
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def _convolutions(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.ReLU())


class UNet(nn.Module):
    """Skips from each level down to the same level up."""

    def __init__(self) -> None:
        super().__init__()
        self.downs = nn.ModuleList(_convolutions(*each) for each in ((3, 8), (8, 16), (16, 16)))
        self.ups = nn.ModuleList(_convolutions(*each) for each in ((32, 16), (32, 8)))
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return maps of two classes."""
        x, skips = images, list[Tensor]()
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = functional.interpolate(x, scale_factor=2.0)
        for up, skip in zip(self.ups, [skips[2], skips[1]], strict=True):
            x = functional.interpolate(up(torch.cat([x, skip], 1)), scale_factor=2.0)
        return self.head(x + skips[0])


class DenseNet(nn.Module):
    """Every layer reads the outputs of all layers before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 + 4 * number) for number in range(LAYERS))
        self.layers = nn.ModuleList(nn.Conv2d(8 + 4 * number, 4, 3, padding=1) for number in range(LAYERS))
        self.head = nn.Linear(8 + 4 * LAYERS, 5)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of classes."""
        found = [self.stem(images)]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            found.append(layer(torch.relu(norm(torch.cat(found, 1)))))
        return self.head(torch.cat(found, 1).mean((2, 3)))


class GraphConvolutions(nn.Module):
    """Convolutions over graphs with dense adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6 if not number else WIDTH, WIDTH) for number in range(LAYERS))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Return scores for each graph; adjacency is samples x nodes x nodes."""
        degrees = adjacency.sum(-1).clamp(min=1).rsqrt()
        normed = degrees[:, :, None] * adjacency * degrees[:, None, :]
        x = nodes
        for layer in self.layers:
            x = torch.relu(layer(normed @ x))
        return self.head(x.mean(1))


class Vae(nn.Module):
    """A variational autoencoder. Its noise is an input, so that it can be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)
        self.decoder = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 20))

    def forward(self, x: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the reconstruction, means and logarithms of variances."""
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(mean + drawn * (log_variance / 2).exp()), mean, log_variance


class _MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.tokens = nn.Sequential(nn.Linear(PATCHES, 32), nn.GELU(), nn.Linear(32, PATCHES))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 4, 4)
        self.blocks = nn.Sequential(*(_MixerBlock() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of classes."""
        return self.head(self.blocks(self.stem(images).flatten(2).mT).mean(1))


class _ConvNextBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        found = self.norm(self.deep(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(functional.gelu(self.up(found)))).permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """ConvNeXt in the manner of timm, with one level."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 4, 4)
        self.stage = nn.Sequential(*(_ConvNextBlock() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of classes."""
        return self.head(self.stage(self.stem(images)).mean((-2, -1)))


class Dlrm(nn.Module):
    """Products of the embeddings of tables with dense features."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """Return the logit of a click; sparse is samples x tables x rows."""
        below = self.bottom(dense)
        found = torch.stack([below, *(table(sparse[:, number]) for number, table in enumerate(self.tables))], 1)
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([below, torch.bmm(found, found.mT)[:, rows, columns]], 1))


class MixtureDensity(nn.Module):
    """Shares, means and widths of normal distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.shares, self.means, self.widths = (nn.Linear(WIDTH, size) for size in (3, 6, 3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return the distribution of two numbers."""
        hidden = self.body(x)
        widths = functional.softplus(self.widths(hidden)) + 1e-3
        return {
            "shares": self.shares(hidden).log_softmax(-1),
            "means": self.means(hidden).view(-1, 3, 2),
            "widths": widths,
        }


_SPARSE = torch.randint(0, 20, (SAMPLES, 3, 2), generator=torch.Generator().manual_seed(0))
ORDINARY: dict[str, tuple[type[nn.Module], dict[str, Tensor]]] = {
    **SEQUENCES,
    "ViT as in timm": (Vit, {"images": noise(3, 16, 16)}),
    "U-Net": (UNet, {"images": noise(3, 16, 16)}),
    "DenseNet": (DenseNet, {"images": noise(3, 16, 16)}),
    "graph convolutions": (GraphConvolutions, {"nodes": noise(7, 6), "adjacency": (noise(7, 7) > 0).float()}),
    "variational autoencoder": (Vae, {"x": noise(20), "drawn": noise(4)}),
    "MLP-Mixer": (Mixer, {"images": noise(3, 16, 16)}),
    "ConvNeXt as in timm": (ConvNext, {"images": noise(3, 16, 16)}),
    "DLRM": (Dlrm, {"dense": noise(5), "sparse": _SPARSE}),
    "mixture density": (MixtureDensity, {"x": noise(5)}),
}
"""Modules and a mini-batch for each, by what they are."""
