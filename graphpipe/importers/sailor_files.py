"""The files of Sailor's profiler and planner: profiles of layers, sizes of a model, links, and what was run."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import TypeVar

from graphpipe.errors import InvalidInput, nearest
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_json

MOST_GPUS = 65_536
"""The limit of a cluster file, because a wrong number must not fill the memory."""
Group = tuple[tuple[tuple[str, int, str], ...], int]
"""The GPUs of one replica (type, count, zone), and its tensor-parallel degree."""
LayerSeconds = tuple[float, float, float]
"""Forward, backward and update."""
_MEGA = 1e6
_Value = TypeVar("_Value")


# The fields are spelled as in the files. Fields that an import does not need may be there too.
@dataclass(frozen=True, slots=True, kw_only=True)
class SailorPipeline:
    """The stages of a plan. Lists have an entry for each stage."""

    layers_per_stage: tuple[tuple[int, ...], ...]
    tmp_per_stage: tuple[tuple[Group, ...], ...]
    """The replicas of each stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SailorRun:
    """A plan, and what was measured of it."""

    pipeline_list: tuple[SailorPipeline, ...]
    mbs: int
    """Samples of a micro-batch of one replica."""
    gbs: int
    real: float | None = None
    """Measured seconds of a step."""
    max_mem: float | None = None
    """Measured bytes of the fullest GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SailorLayer:
    """The sizes of a layer on one GPU of a tensor-parallel group; activations are those of one sample."""

    params_bytes: float
    act_output_bytes: float
    act_mem_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SailorCurve:
    """The bandwidth between GPUs, by the size of a message."""

    square: float
    linear: float
    constant: float
    largest: float

    def bytes_per_second(self, count: float) -> float:
        """Return the bandwidth of a message of so many bytes: a parabola of the logarithm, up to its largest value.

        Below a megabyte, and where the parabola falls, the nearest size counts for which it was measured.
        """
        size = log2(max(1.0, count / _MEGA))
        if self.square < 0:
            size = min(size, -self.linear / (2 * self.square))
        return min(self.largest, 1e9 * (self.square * size * size + self.linear * size + self.constant))


@dataclass(frozen=True, slots=True, kw_only=True)
class SailorFiles:
    """A folder of Sailor's files."""

    folder: Path
    profile: Mapping[str, Mapping[int, Mapping[int, Mapping[int, LayerSeconds]]]]
    """Seconds by GPU type, samples of a micro-batch, tensor-parallel degree and layer."""
    layers: Mapping[int, Mapping[int, SailorLayer]]
    """Sizes by tensor-parallel degree and layer."""
    links: Mapping[str, Mapping[str, Mapping[int, SailorCurve]]]
    """Curves by `inter` or `intra`, GPU type, and GPUs of a node that send at once."""
    runs: Mapping[str, Path]

    @staticmethod
    def load(folder: str | Path) -> "SailorFiles":
        """Read `profile.json`, `model.json`, `links.json` and the names of `runs/*.json`.

        Raises:
            InvalidInput: a file is missing or cannot be used. The file and the field are named.
        """
        folder = Path(folder)
        curves = _read(folder / "links.json", dict[str, dict[str, dict[int, tuple[tuple[float, float, float], float]]]])
        return SailorFiles(
            folder=folder,
            profile=_read(folder / "profile.json", dict[str, dict[int, dict[int, dict[int, LayerSeconds]]]]),
            layers=_read(folder / "model.json", dict[int, dict[int, SailorLayer]], "layers"),
            links={
                kind: {
                    gpu: {
                        count: SailorCurve(square=a, linear=b, constant=c, largest=most)
                        for count, ((a, b, c), most) in by_count.items()
                    }
                    for gpu, by_count in by_gpu.items()
                }
                for kind, by_gpu in curves.items()
            },
            runs={path.stem: path for path in sorted((folder / "runs").glob("*.json"))},
        )

    def run(self, name: str) -> SailorRun:
        """Read a plan.

        Raises:
            InvalidInput: there is none of this name, it has several pipelines, or its numbers do not fit each other.
        """
        if name not in self.runs:
            raise InvalidInput(f"no run is named '{name}'", where=str(self.folder), remedy=nearest(name, [*self.runs]))
        where = str(self.runs[name])
        run = _read(self.runs[name], SailorRun)
        if len(run.pipeline_list) != 1:
            what = f"has {len(run.pipeline_list)} pipelines, and only plans of one can be read"
            raise InvalidInput(what, where=f"{where}, pipeline_list", remedy="Import each as a run of its own.")
        (pipeline,) = run.pipeline_list
        if len(pipeline.layers_per_stage) != len(pipeline.tmp_per_stage):
            stages = f"{len(pipeline.layers_per_stage)} and {len(pipeline.tmp_per_stage)} stages"
            what = f"layers_per_stage and tmp_per_stage have {stages}"
            raise InvalidInput(what, where=where, remedy="Give both lists an entry for each stage.")
        for stage, (layers, groups) in enumerate(zip(pipeline.layers_per_stage, pipeline.tmp_per_stage, strict=True)):
            if not layers or not groups:
                what = f"has {len(layers)} layers and {len(groups)} replicas, must have at least one of both"
                raise InvalidInput(what, where=f"{where}, stage {stage}")
        for number in ("mbs", "gbs"):
            if getattr(run, number) < 1:
                raise InvalidInput(f"is {getattr(run, number)}, must be at least 1", where=f"{where}, {number}")
        gpus = sum(count for stage in pipeline.tmp_per_stage for group, _ in stage for _, count, _ in group)
        if not 0 < gpus <= MOST_GPUS:
            raise InvalidInput(f"has {gpus} GPUs, must be 1 to {MOST_GPUS}", where=f"{where}, tmp_per_stage")
        return run


def _read(path: Path, kind: type[_Value], field: str = "") -> _Value:
    body = read_json(path)
    if not isinstance(body, dict):
        raise InvalidInput("is not a JSON object", where=str(path), remedy="Name a folder of Sailor's files.")
    if field:
        body = body.get(field)
    return from_body(kind, body, f"{path}, {field}" if field else str(path))
