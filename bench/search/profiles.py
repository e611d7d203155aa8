"""The published PipeDream profiles planned by every planner: real operator times, 4 to 64 devices.

Step times are simulated on links of the `summit` preset; operator times are the profiles' own (measured by their
authors on a GPU they do not name). Reads ../shared/data/pipedream beside the checkout.
"""

from typing import Any

from bench.case import limited_row
from bench.record import SHARED, save
from bench.tables import markdown
from graphpipe.graph.import_pipedream import read_pipedream

DATA = SHARED / "pipedream"
DEVICES = (4, 8, 16, 64)
SHOWN = ("1f1b", "graphpipe", "spp", "pipedream", "piper", "gpipe", "dapple", "pipedream-2bw")
LIMIT_SECONDS = 30.0


def main() -> None:
    """Run the benchmark, write JSON and table."""
    if not DATA.exists():
        print(f"skipped: no profiles at {DATA}")
        return
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    for model in ("inception_v3", "gnmt", "resnet50", "vgg16"):
        graph = read_pipedream(DATA / f"{model}.graph.txt")
        for devices in DEVICES:
            cells = [limited_row(LIMIT_SECONDS, graph, model, devices, 32 * devices, name) for name in SHOWN]
            rows += cells
            lines.append([model, devices, *map(_shown, cells)])
            print(*lines[-1], sep="\t", flush=True)
    caption = (__doc__ or "").partition("\n\n")[2] + "\nCells: samples per second (search seconds)."
    markdown("profiles", "Real profiles", caption, ["model", "devices", *SHOWN], lines)
    print(f"saved {save('profiles', rows, limit_seconds=LIMIT_SECONDS)}")


def _shown(cell: dict[str, Any]) -> str:
    if cell["status"] != "ok":
        return cell["status"]
    return f"{cell['samples_per_second']:.0f} ({cell['cpu_seconds']:.2f})"
