"""Which families of Hugging Face come apart layer by layer, which loss trains them, and whether it trains them exactly.

Every model is tiny and has random weights. An operator is what a plan can put into a stage. A family comes apart if no
operator holds the parameters of two layers.
"""

import json
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from bench.families.build import build_family
from bench.families.gradients import distance, precise
from bench.families.table import FAMILIES, LEFT_OUT
from bench.record import RESULTS, ROOT, save
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.model.own_loss.from_transformers import TransformersModel, from_transformers, innermost, without_outer

PAGE = ROOT / "docs" / "models.md"
HEADER = (
    "| Family | Layers | Operators | Most layers in one operator | Away from PyTorch | Loss, or why it is refused |"
)
LIST = "that is not in the table, one of these sentences holds.\n\n"
"""What stands before the list of models that are not in the table."""
OWN = "its own, exact over micro-batches"
YOURS = "your own `loss_fn`"


def layers_of(model: nn.Module) -> list[str]:
    """Return the paths of the layers: what transformers can checkpoint, or else the items of its lists of modules."""
    lists = [(path, part) for path, part in model.named_modules() if isinstance(part, nn.ModuleList)]
    items = [f"{path}.{number}" for path, part in lists for number, item in enumerate(part) if [*item.children()]]
    return innermost(model, GradientCheckpointingLayer) or without_outer(items)


def most_layers(graph: Graph, layers: list[str]) -> int:
    """Return the largest number of layers with parameters in one operator. Shared parameters do not count."""
    holders = Counter(name for op in graph.ops for name in op.parameters)
    own = [[name for name in op.parameters if holders[name] == 1] for op in graph.ops]
    return max(sum(any(name.startswith(f"{layer}.") for name in names) for layer in layers) for names in own)


def measure(name: str) -> dict[str, Any]:
    """Return the row of a family.

    `reason` says in one line why something is refused. `away` is the distance of gradients from plain PyTorch.
    """
    torch.manual_seed(0)
    model, example = precise(*build_family(name))
    layers = layers_of(model)
    row: dict[str, Any] = {"family": name, "layers": len(layers)}
    start = time.process_time()
    held, loss, reason = captured(model, example)
    row |= {"seconds": round(time.process_time() - start, 1), "loss": loss, "reason": reason}
    if held is not None:
        batch = {key: each for key, each in example.items() if key != "labels" or held.loss is not None}
        row |= {
            "operators": len(held.graph.ops),
            "most": most_layers(held.graph, layers),
            "away": distance(held, batch),
        }
    return row


def captured(model: nn.Module, example: dict[str, Any]) -> tuple[TransformersModel | None, str, str]:
    """Return the model, with its own loss if that is possible, which loss it has, and why it is not its own."""
    reason = ""
    for inputs in (example, {key: each for key, each in example.items() if key != "labels"}):
        try:
            with warnings.catch_warnings(action="ignore"):
                held = from_transformers(model, inputs)
        except InvalidInput as error:
            reason = reason or error.what.splitlines()[0]
        else:
            return held, OWN if held.loss is not None else YOURS, reason
    return None, "", reason


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    if "operators" not in row:
        return f"| {row['family']} | {row['layers']} | | | | refused: {row['reason']} |"
    loss = f"{row['loss']}: {row['reason']}" if row["reason"] else row["loss"]
    return f"| {row['family']} | {row['layers']} | {row['operators']} | {row['most']} | {row['away']:.0e} | {loss} |"


def left_out() -> str:
    """Return the paragraphs about the models that are not in the table."""
    return "\n".join(
        wrap_item(f"{reason[0].upper()}{reason[1:]}: {', '.join(f'`{name}`' for name in names)}.")
        for reason, names in LEFT_OUT.items()
    )


def wrap_item(text: str) -> str:
    """Return an item of a list, wrapped as the rest of the page."""
    return textwrap.fill(text, 130, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def write_table(rows: list[dict[str, Any]]) -> None:
    """Replace the table on the page, and the list of those that are not in it."""
    before, _, rest = PAGE.read_text().partition(HEADER)
    after = rest[rest.index("\n\n") :]
    text = "\n".join((f"{before}{HEADER}", "|---|---|---|---|---|---|", *map(line, rows))) + after
    before, _, rest = text.partition(LIST)
    PAGE.write_text(f"{before}{LIST}{left_out()}{rest[rest.index(chr(10) * 2) :]}" if rest else text)


def main(names: Annotated[Sequence[str], FAMILIES] = ()) -> None:
    """Run the benchmark, write JSON and the table of docs/models.md.

    Args:
        names: families to measure; the saved rows of the others stay. Without names, all.
    """
    rows = {row["family"]: row for row in saved()}
    for name in names or FAMILIES:
        rows[name] = measure(name)
        print(line(rows[name]), f"{rows[name]['seconds']} s", flush=True)
    ordered = [row for name, row in rows.items() if name in FAMILIES]
    save("families", ordered)
    write_table(ordered)


def saved() -> list[dict[str, Any]]:
    """Return the rows of the last run."""
    return json.loads((RESULTS / "families.json").read_text())["rows"]
