"""Mini-batches of many lengths: processor time against mini-batches that are padded to the longest.

Everything runs in one process with one thread: a tiny model of Hugging Face with random weights on two stages. The
lengths are drawn once, between 16 and 128, and each step has one. `padded` has the same texts, with padding up to 128
that neither attention nor the loss reads. Losses of both are those of plain PyTorch, or this fails.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import graphpipe as gp
from bench.families.build import build_family
from bench.record import save
from bench.tables import markdown

NAME = "lengths"
SAMPLES, SHORTEST, LONGEST, WORDS, COMPARED = 8, 16, 128, 256, 5
_ALIKE = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": LONGEST}
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, **_ALIKE},
    "gpt2": {"n_embd": 64, "n_layer": 8, "n_head": 4, "n_positions": LONGEST},
    "mixtral": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_local_experts": 8,
        **_ALIKE,
    },
}
"""Families of Hugging Face, and sizes of their configurations."""


def model_of(family: str) -> nn.Module:
    """Return a tiny model of a family."""
    torch.manual_seed(0)
    model, _ = build_family(family, vocab_size=WORDS, **SIZES[family])
    return model


def texts(length: int, seed: int, width: int) -> dict[str, Tensor]:
    """Return texts of a length, padded on the right to a width."""
    words = torch.randint(1, WORDS, (SAMPLES, length), generator=torch.Generator().manual_seed(seed))
    pad = partial(torch.nn.functional.pad, pad=(0, width - length))
    mask = torch.ones_like(words)
    return {"input_ids": pad(words), "attention_mask": pad(mask), "labels": pad(words, value=-100)}


def trained(family: str, lengths: list[int], *, padded: bool) -> dict[str, Any]:
    """Train without changing a weight; return processor seconds of all steps after the first, and the losses."""
    batches = [texts(length, seed, LONGEST if padded else length) for seed, length in enumerate(lengths)]
    found = gp.from_transformers(model_of(family), batches[0])
    cluster = gp.Cluster.preset("local:2")
    plan = gp.plan(found.graph, gp.estimate(found.graph, cluster), cluster, batch_size=SAMPLES, planner="gpipe")
    options = gp.PipelineOptions(captured=found.captured, alone=True)
    optimizer = partial(torch.optim.SGD, lr=0.0)
    with gp.Pipeline(plan, found.module, found.loss_fn, optimizer, options=options) as pipeline:
        losses = [pipeline.step(*found.batch(batches[0]))]
        start = time.process_time()
        losses += [pipeline.step(*found.batch(batch)) for batch in batches[1:]]
        return {"seconds": time.process_time() - start, "losses": losses, "captures": pipeline.captures}


def capture_seconds(family: str, batch: Mapping[str, Tensor]) -> float:
    """Return the processor seconds of one capture."""
    model = model_of(family)
    start = time.process_time()
    gp.from_transformers(model, batch)
    return time.process_time() - start


def measure(family: str, lengths: list[int]) -> dict[str, Any]:
    """Return the row of a family."""
    free, padded = (trained(family, lengths, padded=each) for each in (False, True))
    model = model_of(family)
    with torch.no_grad():
        plain = [model(**texts(length, seed, length)).loss.item() for seed, length in enumerate(lengths[:COMPARED])]
    for found in (free["losses"], padded["losses"]):
        torch.testing.assert_close(torch.tensor(found[:COMPARED]), torch.tensor(plain), rtol=1e-5, atol=0)
    torch.testing.assert_close(torch.tensor(free["losses"]), torch.tensor(padded["losses"]), rtol=1e-5, atol=0)
    return {
        "family": family,
        "lengths": len(set(lengths)),
        "captures": free["captures"],
        "seconds": free["seconds"],
        "padded_seconds": padded["seconds"],
        "capture_seconds": capture_seconds(family, texts(lengths[0], 0, lengths[0])),
    }


def main(*, steps: int = 200) -> None:
    """Measure, print, and write `bench/results/lengths.json` and `.md`.

    Args:
        steps: of each training.
    """
    torch.set_num_threads(1)
    drawn = torch.randint(SHORTEST, LONGEST + 1, (steps,), generator=torch.Generator().manual_seed(1)).tolist()
    rows: list[dict[str, Any]] = []
    for family in SIZES:
        rows.append(measure(family, drawn))
        print(rows[-1], flush=True)
    save(NAME, rows, steps=steps)
    lines = [
        [
            row["family"],
            row["lengths"],
            row["captures"],
            f"{row['seconds']:.1f}",
            f"{row['padded_seconds']:.1f}",
            f"{row['seconds'] / row['padded_seconds']:.2f}",
            f"{row['lengths'] * row['capture_seconds']:.0f}",
        ]
        for row in rows
    ]
    caption = (
        f"**Measured** in one process with one thread, on two shared cores: processor seconds of {steps} steps with "
        f"{SAMPLES} texts each, whose length is drawn between {SHORTEST} and {LONGEST} for each step. `padded` are the "
        f"same texts with padding up to {LONGEST}. `each captured` is the time of one capture for every length."
    )
    header = ["family", "lengths", "captured", "as they are, s", "padded, s", "ratio", "each captured, s"]
    markdown(NAME, "Lengths", caption, header, lines)


if __name__ == "__main__":
    main()
