"""A recommender of two towers, from a table of clicks: does this user click this item?

    user, country, device (n, 3) int64  -> user: embeddings, layers  -+-> score: their product, price and hour -> (n,)
    item, category        (n, 2) int64  -> item: embeddings, layers  -+
    price, hour           (n, 3)        -----------------------------+

    graphpipe train examples/clicks.toml

`clicks.csv.gz` has 4,000 rows that were drawn at random: each user and each item has two hidden tastes. Put a table of
your own in its place, and change the names of the columns below.
"""

import csv
import gzip
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import graphpipe as gp

TABLE = Path(__file__).with_name("clicks.csv.gz")
USER, ITEM = ("user", "country", "device"), ("item", "category")
WIDTH, HELD_OUT = 64, 5
"""The width of the towers. Every fifth row is held out."""


class Tower(nn.Module):
    """Embeds some columns of categories, and mixes them: (n, columns) int64 -> (n, WIDTH)."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, WIDTH) for size in sizes)
        self.layers = nn.Sequential(
            *(nn.Linear(len(sizes) * WIDTH, 4 * WIDTH), nn.ReLU(), nn.LayerNorm(4 * WIDTH)),
            *(nn.Linear(4 * WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)),
        )

    def forward(self, categories: Tensor) -> Tensor:
        embedded = [embedding(categories[:, at]) for at, embedding in enumerate(self.embeddings)]
        return self.layers(torch.cat(embedded, dim=1))


class Score(nn.Module):
    """How likely a click is, as a logit: (n, WIDTH), (n, WIDTH), (n, 3) -> (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.beside = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, user: Tensor, item: Tensor, numbers: Tensor) -> Tensor:
        return (user * item).sum(dim=1) / WIDTH**0.5 + self.beside(numbers).squeeze(1)


class Recommender(nn.Module):
    """Both towers and the score. The towers do not depend on each other."""

    def __init__(self, user_sizes: list[int], item_sizes: list[int]) -> None:
        super().__init__()
        self.user, self.item, self.score = Tower(user_sizes), Tower(item_sizes), Score()

    def forward(self, users: Tensor, items: Tensor, numbers: Tensor) -> Tensor:
        return self.score(self.user(users), self.item(items), numbers)


class Clicks(Dataset[tuple[dict[str, Tensor], Tensor]]):
    """Rows of the table by index. Each rank reads only what its stages consume."""

    def __init__(self, *, held_out: bool) -> None:
        with gzip.open(TABLE, "rt", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.sizes: dict[str, int] = {}
        columns: dict[str, Tensor] = {}
        for name in (*USER, *ITEM):
            known = {word: number for number, word in enumerate(sorted({row[name] for row in rows}))}
            self.sizes[name] = len(known)
            columns[name] = torch.tensor([known[row[name]] for row in rows])
        price = torch.tensor([math.log(float(row["price"])) for row in rows])
        angle = torch.tensor([float(row["hour"]) for row in rows]) * (2 * math.pi / 24)
        chosen = (torch.arange(len(rows)) % HELD_OUT == 0) == held_out
        self.users = torch.stack([columns[name] for name in USER], dim=1)[chosen]
        self.items = torch.stack([columns[name] for name in ITEM], dim=1)[chosen]
        self.numbers = torch.stack([(price - price.mean()) / price.std(), angle.sin(), angle.cos()], dim=1)[chosen]
        self.clicked = torch.tensor([float(row["clicked"]) for row in rows])[chosen]

    def __len__(self) -> int:
        return len(self.clicked)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        inputs = {"users": self.users[index], "items": self.items[index], "numbers": self.numbers[index]}
        return inputs, self.clicked[index]


def ranking(logits: Tensor, clicked: Tensor) -> dict[str, float]:
    """Return the area under the ROC curve: how often a clicked row has a higher score than another one."""
    ranks = logits.argsort().argsort().double() + 1
    positive = clicked > 0.5
    count, others = int(positive.sum()), int((~positive).sum())
    return {"auc": (ranks[positive].sum().item() - count * (count + 1) / 2) / (count * others)}


def task() -> gp.Task:
    """Return the task of `graphpipe train examples/clicks.toml`."""
    rows = Clicks(held_out=False)
    module = Recommender([rows.sizes[name] for name in USER], [rows.sizes[name] for name in ITEM])
    return gp.Task(
        module=module,
        example_inputs={"users": rows.users[:4], "items": rows.items[:4], "numbers": rows.numbers[:4]},
        loss_fn=nn.functional.binary_cross_entropy_with_logits,
        dataset=rows,
        held_out=Clicks(held_out=True),
        metrics=ranking,
    )
