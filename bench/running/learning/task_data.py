"""Data of the tasks of weight prediction, which packages ship: scans of digits, and snippets of film reviews."""

import re
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from bench.record import ROOT

SCANS = ROOT / "examples" / "digits.csv.gz"
"""1,797 scans of 8 x 8 pixels (Alpaydin and Kaynak, 1998, UCI Machine Learning Repository, CC BY 4.0)."""
PACKAGE = "vaderSentiment==3.3.2"
"""Its source has the data of Hutto and Gilbert, VADER (ICWSM 2014): 10,604 snippets of film reviews with ratings."""
WORDS, RARE = 24, 3
"""Words of a snippet that are read, and how often a word must be there to be known."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of a task, and the classes that they have."""

    inputs: Tensor
    classes: Tensor

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return some of them."""
        return self.inputs[rows], self.classes[rows]


@dataclass(frozen=True, slots=True)
class Split:
    """Samples for training and for validation."""

    train: Samples
    held_out: Samples
    values: int
    """Different values of an input, if they are numbers of words."""

    @staticmethod
    def of(inputs: Tensor, classes: Tensor, values: int = 0) -> "Split":
        """Shuffle samples, always alike, and keep a fifth for validation."""
        order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
        cut = len(order) * 4 // 5
        every = Samples(inputs, classes)
        return Split(Samples(*every.of(order[:cut])), Samples(*every.of(order[cut:])), values)

    def mini_batch(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return samples for training, drawn with a seed."""
        return self.train.of(
            torch.randint(len(self.train.classes), (size,), generator=torch.Generator().manual_seed(seed))
        )


@cache
def scans() -> Split:
    """Return scans (n, 1, 8, 8) between -1 and 1, and their digits."""
    rows = torch.from_numpy(np.loadtxt(SCANS, delimiter=",", dtype=np.float32))
    return Split.of(rows[:, :-1].reshape(-1, 1, 8, 8) / 8 - 1, rows[:, -1].long())


@cache
def reviews() -> Split:
    """Return snippets as numbers of words (n, WORDS), and whether their mean rating is above 0.

    Raises:
        CalledProcessError: pip cannot download the package.
    """
    rated = [line.split("\t")[1:] for line in _lines()]
    texts = [re.findall(r"[a-z']+", text.lower()) for _, text in rated]
    counted = Counter(word for text in texts for word in text)
    known = {word: at for at, word in enumerate(sorted(word for word, count in counted.items() if count >= RARE), 2)}
    numbers = torch.zeros(len(texts), WORDS, dtype=torch.long)  # 0 fills up, 1 is a rare word.
    for row, text in zip(numbers, texts, strict=True):
        read = [known.get(word, 1) for word in text[:WORDS]]
        row[: len(read)] = torch.tensor(read)
    return Split.of(numbers, torch.tensor([float(rating) > 0 for rating, _ in rated]).long(), len(known) + 2)


def _lines() -> list[str]:
    with TemporaryDirectory() as name:
        options = ("--quiet", "--no-deps", "--no-binary", ":all:", "--dest", name)
        subprocess.run([sys.executable, "-m", "pip", "download", *options, PACKAGE], check=True)
        (source,) = Path(name).glob("*.tar.gz")
        with tarfile.open(source) as outer:
            (inside,) = (each for each in outer.getnames() if each.endswith("hutto_ICWSM_2014.tar.gz"))
            with tarfile.open(fileobj=outer.extractfile(inside)) as inner:
                (path,) = (each for each in inner.getnames() if each.endswith("movieReviewSnippets_GroundTruth.txt"))
                text = inner.extractfile(path)
                assert text is not None
                return text.read().decode("latin-1").strip().splitlines()
