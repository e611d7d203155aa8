"""Small branching models, their mini-batches and their losses."""

import torch
from torch import Tensor, nn

from graphpipe.model.dag_module import DagModule

BATCH = 12


class Join(nn.Module):
    """Concatenates two branches and scores them."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.score = nn.Linear(2 * width, classes)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.score(torch.cat([left, right], dim=1))


class Both(nn.Module):
    """Joins a branch with token numbers that enter here."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout))

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return self.mix(hidden + self.embed(tokens).mean(1))


class Contrast(nn.Module):
    """Similarity of every left row with every right row: needs the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = (nn.functional.normalize(side, dim=1) for side in (left, right))
        return self.scale * left @ right.T


def fan(dropout: float = 0.0, norm: bool = False, head: str = "join", seed: int = 0) -> DagModule:
    """stem -> left, right(+ tokens) -> head."""
    torch.manual_seed(seed)
    width = 8
    middle = [nn.BatchNorm1d(width)] if norm else []
    left = nn.Sequential(nn.Linear(width, width), *middle, nn.ReLU(inplace=True), nn.Dropout(dropout))
    return DagModule(
        {
            "stem": nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Dropout(dropout)),
            "left": left,
            "right": Both(width, dropout),
            "head": Join(width, 3) if head == "join" else Contrast(),
        },
        inputs={"stem": ["x"], "left": ["stem"], "right": ["stem", "tokens"], "head": ["left", "right"]},
        whole_batch=() if head == "join" else ("head",),
    )


def fan_batch(samples: int = BATCH, seed: int = 1) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and targets of `fan`."""
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        "x": torch.randn(samples, 5, generator=generator),
        "tokens": torch.randint(0, 11, (samples, 4), generator=generator),
    }
    return inputs, torch.randint(0, 3, (samples,), generator=generator)


def cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples."""
    return nn.functional.cross_entropy(output, targets)


def contrastive(output: Tensor, targets: object) -> Tensor:
    """Each row's partner is on the diagonal: not a mean of per-sample terms of smaller batches."""
    del targets
    return nn.functional.cross_entropy(output, torch.arange(len(output)))


STAGES = {
    "four": [(["stem"], [0], 4), (["left"], [1], 6), (["right"], [2], 3), (["head"], [3], 2)],
    "mixed": [(["stem"], [0, 1], 4), (["left", "right"], [2, 3, 4], 6), (["head"], [5], 12)],
    "replicas": [(["stem", "left"], [0, 1], 4), (["right", "head"], [2, 3], 6)],
    "shared": [(["stem"], [0], 3), (["left"], [1], 6), (["right"], [1], 2), (["head"], [0], 4)],
    "pair": [(["stem"], [0], 4), (["left"], [0, 1], 4), (["right"], [1], 4), (["head"], [1], 4)],
    "whole": [(["stem"], [0, 1], 4), (["left"], [2], 6), (["right"], [0], 3), (["head"], [3], 12)],
}
"""Ways to cut `fan`: operators, devices, micro-batch."""
