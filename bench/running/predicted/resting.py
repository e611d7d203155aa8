"""What a stage offloads rests on a neighbour: how much memory the fuller process needs, predicted and measured.

Two local processes train six blocks of two linear layers on mini-batches of 32 x 256 x 256 under `gpipe`. The first
process has five of the blocks. Measured is how far the resident memory of each process grows over two steps. Freed
memory goes back to the system at once here (`MALLOC_MMAP_THRESHOLD_`). By default, glibc keeps a part of it.
"""

import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import graphpipe as gp
from bench.record import save
from bench.tables import markdown
from graphpipe.launch.launcher import launch
from graphpipe.plans.device_memory import needed_bytes

BATCH, MICRO, BLOCKS, WIDTH = 32, 4, 6, 256
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
WAYS = {"kept": None, "on the neighbour": (1,)}
"""Where the first stage's activations are between forward and backward."""
MIB = 2**20


class Block(nn.Module):
    """Two linear layers beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the shortcut and the layers."""
        return x + self.layers(x)


def planned(model: nn.Module, neighbour: tuple[int, ...] | None) -> gp.Plan:
    """Return the plan of two stages, with the activations of the first one kept or on the neighbour."""
    graph, cluster = gp.capture(model, (torch.randn(2, WIDTH, WIDTH),)), gp.Cluster.preset("local:2")
    last = tuple(name for name in graph.order if name.startswith(f"{BLOCKS - 1}"))
    first = tuple(name for name in graph.order if name not in last)
    stages = [
        gp.HandStage(
            ops=first, devices=(0,), micro_batch=MICRO, offload=first if neighbour else (), offload_to=neighbour or ()
        ),
        gp.HandStage(ops=last, devices=(1,), micro_batch=MICRO),
    ]
    costs = gp.estimate(graph, cluster)
    return gp.hand_plan(graph, costs, cluster, batch_size=BATCH, schedule="gpipe", stages=stages)


def train(way: str, folder: str) -> None:
    """Take two steps on a rank, and write what was measured."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    x, targets = torch.randn(BATCH, WIDTH, WIDTH), torch.randn(BATCH, WIDTH, WIDTH)
    plan = planned(model, WAYS[way])
    with gp.Pipeline(plan, model, nn.functional.mse_loss, torch.optim.SGD) as pipeline:
        before, rank = _resident(), dist.get_rank()
        losses = [pipeline.step((x,), targets) for _ in range(2)]
        grown = _resident() - before
    row = {"rank": rank, "predicted": needed_bytes(plan)[rank] / MIB, "measured": grown, "losses": losses}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(row))


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(way: str) -> list[dict[str, Any]]:
    """Return the rows of both ranks."""
    with tempfile.TemporaryDirectory() as folder:
        launch("bench.running.predicted.resting:train", 2, arguments=[way, folder], environment=FREED_AT_ONCE)
        return [{"way": way, **json.loads((Path(folder) / f"{rank}.json").read_text())} for rank in range(2)]


def main() -> None:
    """Run the benchmark, write the table and JSON; fail if the losses differ."""
    rows = [row for way in WAYS for row in measured(way)]
    assert len({tuple(row["losses"]) for row in rows}) == 1, "resting must not change a bit"
    lines = [[row["way"], row["rank"], f"{row['predicted']:.0f}", f"{row['measured']:.0f}"] for row in rows]
    header = ["activations of the first stage", "rank", "predicted, MiB", "measured growth, MiB"]
    caption = (__doc__ or "").partition("\n\n")[2].strip()
    print(*lines, sep="\n")
    markdown("resting", "Activations that rest on a neighbour", caption, header, lines)
    save("resting", rows)


if __name__ == "__main__":
    sys.exit(main())
