"""Predicted against measured: transformer layers that 2, 4 and 8 GPUs share, predicted from those of one GPU.

**Measured** by the authors of Sailor (a layer of OPT-350M on GH200) and of Mist (layers of GPT models on A10G); nothing
was measured here. The costs of one GPU are a line through its profiles with 1, 2, 4 and more samples. From it follow
those of each of several GPUs, as plans count them (`costs/ranks`): products and what lies between them are divided,
norms and dropouts of whole values are not, and each all-reduce is a ring over the links. On GH200 the link is that of
the data sheet (NVLink 4: 150 GB/s between two GPUs, in each direction). On A10G it is the line through the all-reduces
that the authors measured with as many GPUs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from bench.record import SHARED, save
from bench.tables import markdown
from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs import CostModel, CostTable, OpCost
from graphpipe.costs.ranks.rank_costs import rank_costs
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.graph.op_shards import Exchanges, OpShards, ShardFigures
from graphpipe.importers.aceso_links import read_collective
from graphpipe.importers.aceso_profile import ModelProfiles
from graphpipe.importers.megatron_layer import ALL_REDUCES
from graphpipe.importers.sailor_files import SailorFiles
from graphpipe.profiler.fitting.fit_curve import fit_line

TARGET = 0.15
NVLINK = Link(latency_seconds=8e-6, bandwidth_bytes_per_second=150e9)
WHOLE = ("enc-1st-layernorm", "enc-post-attention-dropout", "enc-2nd-layernorm", "enc-post-MLP-dropout")
"""Operators of Megatron's layer that every GPU computes for whole values."""
MODELS = ("1_3B", "2_6B", "6_7B", "13B", "20B", "40B")
SIZES, DEGREES = (1, 2, 4, 8), (2, 4, 8)
HEADER = (
    "model",
    "GPUs",
    "profiles",
    "forward, mean error %",
    "least",
    "most",
    "backward, mean error %",
    "least",
    "most",
)
_SLOWEST = 10.0
"""A profile that is this many times as long as with another number of samples, for each sample, is left out: the first
call of an operator compiles its kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What was measured of one part of a layer on one GPU, and what several GPUs make of it."""

    forward: Mapping[int, float]
    """Seconds by samples."""
    backward: Mapping[int, float]
    shared: bool
    forward_sums: int
    backward_sums: int
    summed_bytes: float
    """Of one sample, in each sum."""

    def _sums(self, count: int) -> Exchanges:
        return Exchanges(reductions=count, bytes_per_sample=count * self.summed_bytes)

    def predicted(self, degree: int, samples: int, link: Link) -> tuple[float, float]:
        """Return the seconds of forward and backward on each of so many GPUs."""
        layout = OpShards(
            most=64,
            submodules=(),
            parameters=(),
            parameter_bytes=0.0,
            figures=ShardFigures(
                flops_per_sample=1.0 if self.shared else 0.0,
                forward=self._sums(self.forward_sums),
                backward=self._sums(self.backward_sums),
            ),
        )
        before, here = Op(name="before"), Op(name="here", work=Work(flops_per_sample=1.0), shards=layout)
        graph = Graph(name="layer", ops=(before, here), edges=(Edge(source="before", target="here"),))
        passes = fit_line(self.forward), fit_line(self.backward)
        half = passes[1].times(0.5)
        rows = (
            OpCost(
                op=op.name,
                device_type="gpu",
                forward=passes[0],
                input_gradient=half,
                weight_gradient=half,
                source="imported",
            )
            for op in graph.ops
        )
        cluster = _cluster(degree, link)
        model = CostModel(graph, CostTable(graph_fingerprint=graph.fingerprint, rows=tuple(rows)), cluster)
        task = rank_costs(model, (tuple(range(degree)),)).task_seconds(("here",), 0, samples)
        return task.forward, task.backward


def _cluster(degree: int, link: Link) -> Cluster:
    kind = DeviceType(
        name="gpu",
        memory_bytes=1.0,
        peak_flops_per_second=1.0,
        memory_bytes_per_second=1.0,
        launch_seconds=0.0,
        half_peak_flops=0.0,
    )
    devices = tuple(Device(name=f"gpu{at}", type="gpu", node="node") for at in range(degree))
    return Cluster(name="node", device_types=(kind,), devices=devices, intra_node=link, inter_node=link)


def main() -> None:
    """Run the benchmark, write JSON and table, and print the mean errors."""
    rows = [*_of_sailor(SHARED / "sailor-gh200"), *_of_mist(SHARED / "mist-a10g" / "profiles")]
    if not rows:
        print(f"skipped: no profiles at {SHARED}")
        return
    means: dict[str, float] = {}
    for source in dict.fromkeys(row["source"] for row in rows):
        some = [row for row in rows if row["source"] == source]
        means[source] = mean(abs(row[each]) for row in some for each in ("forward_error", "backward_error"))
    words = "Mean error: " + ", ".join(f"{100 * error:.1f} % on {name}" for name, error in means.items())
    words += f" (target {100 * TARGET:.0f} %)."
    print(words)
    title, _, caption = (__doc__ or "").partition("\n\n")
    lines = [_line(*key, rows) for key in dict.fromkeys((row["model"], row["degree"]) for row in rows)]
    markdown("degrees", title.rstrip("."), f"{caption.strip()}\n\n{words}", HEADER, lines)
    print(f"saved {save('degrees', rows, mean_errors=means, target=TARGET)}")


def _of_sailor(folder: Path) -> Iterator[dict[str, Any]]:
    if not folder.exists():
        return
    files, layer = SailorFiles.load(folder), 12
    (measured,) = files.profile.values()
    alone = {samples: by_degree[1][layer] for samples, by_degree in measured.items() if 1 in by_degree}
    whole = Layer(
        forward={samples: seconds[0] for samples, seconds in alone.items()},
        backward={samples: seconds[1] for samples, seconds in alone.items()},
        shared=True,
        forward_sums=2,
        backward_sums=2,
        summed_bytes=files.layers[1][layer].act_output_bytes,
    )
    for degree in (2, 4):
        for samples in sorted(alone):
            if degree in measured[samples]:
                forward, backward, _ = measured[samples][degree][layer]
                found = whole.predicted(degree, samples, NVLINK)
                yield _row("GH200", "OPT-350M", degree, samples, (forward, backward), found)


def _of_mist(folder: Path) -> Iterator[dict[str, Any]]:
    for model in MODELS if folder.exists() else ():
        known = {degree: _profiles(folder, model, degree) for degree in (1, *DEGREES)}
        parts = _parts(known[1])
        for degree in DEGREES:
            link = _link(folder, degree)
            for samples in sorted(known[1].rows.keys() & known[degree].rows.keys()):
                rows = [row for row in known[degree].rows[samples] if row.name in parts]
                used = [parts[row.name] for row in rows if _sane(known[degree], row.name, samples)]
                rows = [row for row in rows if _sane(known[degree], row.name, samples)]
                found = [part.predicted(degree, samples, link) for part in used]
                predicted = sum(each[0] for each in found), sum(each[1] for each in found)
                seen = sum(row.forward_seconds for row in rows), sum(row.backward_seconds for row in rows)
                yield _row("A10G", f"GPT {model.replace('_', '.')}", degree, samples, seen, predicted)


def _profiles(folder: Path, model: str, degree: int) -> ModelProfiles:
    paths = {size: folder / f"gpt_{model}_mbs{size}_tp{degree}_algo0.csv" for size in SIZES}
    return ModelProfiles.read({size: path for size, path in paths.items() if path.exists()})


def _parts(alone: ModelProfiles) -> dict[str, Layer]:
    parts: dict[str, Layer] = {}
    for at, name in enumerate(alone.names):
        if not name.startswith("enc-"):
            continue
        rows = {size: rows[at] for size, rows in alone.rows.items() if _sane(alone, name, size)}
        least = min(alone.rows)
        parts[name] = Layer(
            forward={size: row.forward_seconds for size, row in rows.items()},
            backward={size: row.backward_seconds for size, row in rows.items()},
            shared=name not in WHOLE,
            forward_sums=int(ALL_REDUCES.get(name) == "forward"),
            backward_sums=int(ALL_REDUCES.get(name) == "backward"),
            summed_bytes=next(row.input_bytes for row in alone.rows[least] if row.name == WHOLE[0]) / least,
        )
    return parts


def _sane(profiles: ModelProfiles, name: str, samples: int) -> bool:
    each = {size: next(row for row in rows if row.name == name) for size, rows in profiles.rows.items()}
    least = min(row.forward_seconds / size for size, row in each.items())
    return each[samples].forward_seconds / samples < _SLOWEST * least


def _link(folder: Path, degree: int) -> Link:
    # 2 (d-1) steps of count / d bytes: the line through the measured all-reduces, by step.
    measured = read_collective(folder / f"prim_gpt_13B_all_reduce_{degree}gpus.csv")
    steps = 2 * (degree - 1)
    ((latency, per_byte),) = fit_line({count / degree: seconds / steps for count, seconds in measured.items()}).lines
    return Link(latency_seconds=latency, bandwidth_bytes_per_second=1 / per_byte)


def _row(
    source: str, model: str, degree: int, samples: int, seen: tuple[float, float], predicted: tuple[float, float]
) -> dict[str, Any]:
    return {
        "source": source,
        "model": model,
        "degree": degree,
        "samples": samples,
        "forward_seconds": seen[0],
        "backward_seconds": seen[1],
        "predicted_forward_seconds": predicted[0],
        "predicted_backward_seconds": predicted[1],
        "forward_error": predicted[0] / seen[0] - 1,
        "backward_error": predicted[1] / seen[1] - 1,
    }


def _line(model: str, degree: int, rows: Sequence[dict[str, Any]]) -> list[object]:
    some = [row for row in rows if (row["model"], row["degree"]) == (model, degree)]
    cells: list[object] = [model, degree, len(some)]
    for part in ("forward", "backward"):
        errors = [100 * row[f"{part}_error"] for row in some]
        cells += [f"{mean(map(abs, errors)):.0f}", f"{min(errors):+.0f}", f"{max(errors):+.0f}"]
    return cells
