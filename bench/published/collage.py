"""Placements on backends: five models at batch 1 and 16, against eager and every single backend of this machine.

Seconds are medians of alternating runs with one thread, on a machine that does nothing else. `operators` is the
dynamic programme's placement. `operators and NAME` is what the evolutionary search made of it in two minutes. The
gain is the best single backend's seconds over those of the placement that `graphpipe place` takes: 1.00 means that it
takes a single backend. The models are random, and small enough for a shared machine: ResNet-50 on 64 x 64 pixels,
BERT with 2 of its 12 layers and 32 tokens.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

import graphpipe as gp
from bench.record import RESULTS, save
from bench.tables import geometric_mean, markdown
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.inputs import Inputs
from graphpipe.model.zoo import zoo
from graphpipe.profiler.placement.place import PlaceOptions, StagePlacement, place

BATCHES = (1, 16)
Made = tuple[nn.Module, Inputs]


class Recurrent(nn.Module):
    """Two layers of LSTM over 32 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(1000, 128), nn.Linear(128, 1000)
        self.lstm = nn.LSTM(128, 128, num_layers=2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the last token."""
        return self.head(self.lstm(self.words(tokens))[0][:, -1])


def resnet() -> Made:
    """Return ResNet-50."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig()), {"pixel_values": torch.randn(2, 3, 64, 64)}


def bert() -> Made:
    """Return BERT with 2 layers."""
    from transformers import BertConfig, BertModel

    module = BertModel(BertConfig(num_hidden_layers=2), add_pooling_layer=False)
    return module, {"input_ids": torch.randint(0, 30000, (2, 32))}


MODELS: dict[str, Callable[[], Made]] = {
    "lstm": lambda: (Recurrent(), torch.randint(0, 1000, (2, 32))),
    "dlrm-small": lambda: zoo("dlrm-small"),
    "two-tower-small": lambda: zoo("two-tower-small"),
    "bert": bert,
    "resnet-50": resnet,
}


def main(names: Annotated[Sequence[str], MODELS] = ()) -> None:
    """Run the benchmark, write JSON and a table; fail if a placement is slower than the best single backend.

    Args:
        names: models to measure; the saved rows of the others stay. Without names, all.
    """
    torch.set_num_threads(1)
    rows = [row for row in _saved() if names and row["model"] not in names]
    for name in names or MODELS:
        for batch in BATCHES:
            placed = measured(name, batch)
            single = {key: value for key, value in placed.seconds.items() if not key.startswith("operators")}
            row = {"model": name, "batch": batch, "chosen": placed.chosen, "seconds": dict(placed.seconds)}
            gains = {"gain": min(single.values()) / placed.seconds[placed.chosen]}
            rows.append(row | gains | {"over_eager": single["eager"] / placed.seconds[placed.chosen]})
            rows[-1]["failed"] = dict(placed.failed)
            print(rows[-1], flush=True)
            _write(rows)
    assert all(row["gain"] >= 1 for row in rows)


def _saved() -> list[dict[str, Any]]:
    path = RESULTS / "collage.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def measured(name: str, batch: int) -> StagePlacement:
    """Place a model as one stage."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    captured, cluster = capture_nodes(module.eval(), inputs), gp.Cluster.preset("local:1")
    graph = captured.graph
    stage = gp.HandStage(ops=graph.order, devices=(0,), micro_batch=batch)
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=batch, stages=[stage], inference=True)
    options = PlaceOptions(longest=1, rounds=11, clock=time.perf_counter)
    return place(plan, module, inputs, captured, options, lambda line: print(line, file=sys.stderr))[1][0]


def _write(rows: Sequence[dict[str, Any]]) -> None:
    backends = list(dict.fromkeys(name for row in rows for name in row["seconds"]))
    header = ["model", "batch", *(f"{name}, ms" for name in backends), "taken", "gain", "over eager"]
    lines = [
        [
            row["model"],
            row["batch"],
            *(f"{row['seconds'][name] * 1e3:.3f}" if name in row["seconds"] else "-" for name in backends),
            row["chosen"],
            f"{row['gain']:.2f}",
            f"{row['over_eager']:.2f}",
        ]
        for row in rows
    ]
    caption = (__doc__ or "").partition("\n\n")[2].strip()
    means = {key: geometric_mean([row[key] for row in rows]) for key in ("gain", "over_eager")}
    caption += (
        f"\n\nGeometric means: {means['gain']:.2f} over the best single backend, {means['over_eager']:.2f} over eager."
    )
    caption += " Published (Collage, on other machines): 1.13 to 1.40."
    markdown("collage", "Placements on backends", caption, header, lines)
    save("collage", rows, means=means)
