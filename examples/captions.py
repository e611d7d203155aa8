"""A small vision-language model: it reads a picture, and writes what is in it.

    picture (n, 3, 16, 16)  -> vision: patches, layers -> joint: into the decoder's width  -+
    words   (n, 6) int64    -> words: embedding  ------------------------------------------+-> decoder (n, 6, 12)

    graphpipe train examples/captions.toml

The decoder sees the patches of the picture before the words, and predicts each next word. Pictures are drawn: a square
of one of four colours in one of four corners.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import graphpipe as gp

SIZE, PATCH, WIDTH, TEXT_WIDTH, HEADS = 16, 4, 48, 64, 4
PATCHES = (SIZE // PATCH) ** 2
COLOURS = {"red": (1.0, 0.1, 0.1), "green": (0.1, 0.9, 0.1), "blue": (0.1, 0.2, 1.0), "white": (0.9, 0.9, 0.9)}
PLACES = {"top left": (1, 1), "top right": (1, 9), "bottom left": (9, 1), "bottom right": (9, 9)}
WORDS = ("<begin>", "a", "square", *COLOURS, "top", "bottom", "left", "right", "<end>")
LENGTH = 6
"""Words that are read: `<begin> a red square top left`. Those that are predicted are one further."""


class Block(nn.Module):
    """A transformer layer: (n, tokens, width) -> the same."""

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.before, self.queries, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        heads = self.queries(self.before(tokens)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=self.causal)
        tokens = tokens + self.out(seen.transpose(1, 2).flatten(2))
        return tokens + self.mlp(tokens)


class Vision(nn.Module):
    """Patches of a picture, with what is around them: (n, 3, SIZE, SIZE) -> (n, PATCHES, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.places = nn.Parameter(0.1 * torch.randn(PATCHES, WIDTH))
        self.layers = nn.Sequential(*(Block(WIDTH, causal=False) for _ in range(2)))

    def forward(self, picture: Tensor) -> Tensor:
        return self.layers(self.patches(picture).flatten(2).transpose(1, 2) + self.places)


class Decoder(nn.Module):
    """The next word after each word: patches (n, PATCHES, TEXT_WIDTH), words (n, LENGTH, TEXT_WIDTH) -> logits."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, TEXT_WIDTH))
        self.layers = nn.Sequential(*(Block(TEXT_WIDTH, causal=True) for _ in range(3)))
        self.head = nn.Sequential(nn.LayerNorm(TEXT_WIDTH), nn.Linear(TEXT_WIDTH, len(WORDS)))

    def forward(self, patches: Tensor, words: Tensor) -> Tensor:
        tokens = self.layers(torch.cat([patches, words + self.places], dim=1))
        return self.head(tokens[:, PATCHES:])


class Captioner(nn.Module):
    """The vision encoder, a projection, and the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = Vision()
        self.joint = nn.Sequential(nn.Linear(WIDTH, TEXT_WIDTH), nn.GELU(), nn.Linear(TEXT_WIDTH, TEXT_WIDTH))
        self.words, self.decoder = nn.Embedding(len(WORDS), TEXT_WIDTH), Decoder()

    def forward(self, picture: Tensor, words: Tensor) -> Tensor:
        return self.decoder(self.joint(self.vision(picture)), self.words(words))


class Pictures(Dataset[tuple[dict[str, Tensor], Tensor]]):
    """Pictures with their captions, drawn by index."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + index)
        colour, place = (int(torch.randint(4, (), generator=generator)) for _ in range(2))
        name, where = [*COLOURS][colour], [*PLACES][place]
        picture = 0.3 * torch.rand(3, SIZE, SIZE, generator=generator)
        row, column = PLACES[where]
        picture[:, row : row + 6, column : column + 6] = torch.tensor(COLOURS[name]).view(3, 1, 1)
        caption = f"<begin> a {name} square {where} <end>".split()
        words = torch.tensor([WORDS.index(word) for word in caption])
        return {"picture": picture, "words": words[:-1]}, words[1:]


def loss_fn(logits: Tensor, words: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next words."""
    return functional.cross_entropy(logits.transpose(1, 2), words)


def accuracy(logits: Tensor, words: Tensor) -> float:
    """Return the share of captions that are right in every word."""
    return (logits.argmax(dim=-1) == words).all(dim=1).float().mean().item()


def task() -> gp.Task:
    """Return the task of `graphpipe train examples/captions.toml`."""
    inputs, _ = Pictures(4, 0)[0]
    return gp.Task(
        module=Captioner(),
        example_inputs={name: value.expand(4, *value.shape).clone() for name, value in inputs.items()},
        loss_fn=loss_fn,
        dataset=Pictures(1024, seed=1),
        held_out=Pictures(128, seed=2),
        accuracy=accuracy,
    )
