"""The files of a folder of Aceso's profiles, plans and runs, found by their names."""

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphpipe.errors import InvalidInput, nearest
from graphpipe.files.text_file import read_text

_OPS = re.compile(r"(?P<model>.+)_mbs(?P<micro_batch>\d{1,9})_tp(?P<tensor>\d{1,9})_algo(?P<algorithm>\d{1,9})\.csv")
_COLLECTIVE = re.compile(
    r"prim_(?P<model>.+)_(?P<kind>all_reduce|all_gather|reduce_scatter|all_to_all)_(?P<devices>\d{1,9})gpus\.csv"
)
_RUN = re.compile(r"(?P<plan>.+)_stage(?P<stage>\d{1,9})_rank(?P<rank>\d{1,9})\.csv")
LINKS = ("p2p_intra_node.csv", "p2p_inter_node.csv")
"""Bandwidths inside a node and between nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoFiles:
    """The files that an import reads. Other files are left alone."""

    folder: Path
    plans: Mapping[str, Path]
    """Plans by the names of their files, without `.json`."""
    ops: Mapping[tuple[str, int, int], Mapping[int, Path]]
    """Profiles of operators by model, tensor-parallel degree and algorithm, then by samples."""
    collectives: Mapping[tuple[str, str, int], Path]
    """Times of collectives by model, kind (`all_reduce`) and devices."""
    links: Mapping[str, Path]
    """Measured links by name, see `LINKS`."""
    runs: Mapping[str, Mapping[tuple[int, int], Path]]
    """Measured steps by plan, then by stage and rank."""

    @staticmethod
    def find(folder: str | Path) -> "AcesoFiles":
        """Return the files of a folder and the folders in it.

        Raises:
            InvalidInput: not a folder, two files have the same name, or a plan or every operator profile is missing.
        """
        root = Path(folder)
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "cannot read: No such file or directory"
            raise InvalidInput(what, where=str(folder), remedy="Give the folder that has the plans and the profiles.")
        named = _by_name(root)
        ops: dict[tuple[str, int, int], dict[int, Path]] = {}
        collectives: dict[tuple[str, str, int], Path] = {}
        runs: dict[str, dict[tuple[int, int], Path]] = {}
        for name, path in named.items():
            if match := _COLLECTIVE.fullmatch(name):
                collectives[match["model"], match["kind"], int(match["devices"])] = path
            elif match := _OPS.fullmatch(name):
                key = match["model"], int(match["tensor"]), int(match["algorithm"])
                ops.setdefault(key, {})[int(match["micro_batch"])] = path
            elif match := _RUN.fullmatch(name):
                runs.setdefault(match["plan"], {})[int(match["stage"]), int(match["rank"])] = path
        plans = {path.stem: path for name, path in named.items() if name.endswith(".json")}
        for files, what in ((plans, "plan (NAME.json)"), (ops, "profile (MODEL_mbsB_tpT_algoA.csv)")):
            if not files:
                remedy = "Give the folder that has the plans and the profiles."
                raise InvalidInput(f"has no {what}", where=str(folder), remedy=remedy)
        links = {name: named[name] for name in LINKS if name in named}
        return AcesoFiles(folder=root, plans=plans, ops=ops, collectives=collectives, links=links, runs=runs)

    def plan(self, name: str) -> Path:
        """Return the file of a plan.

        Raises:
            InvalidInput: no plan has this name (the nearest is given).
        """
        if name not in self.plans:
            raise InvalidInput(f"has no plan '{name}'", where=str(self.folder), remedy=nearest(name, [*self.plans]))
        return self.plans[name]

    def profiles(self, model: str, tensor: int, algorithm: int) -> Mapping[int, Path]:
        """Return the operator profiles of a model, by samples.

        Raises:
            InvalidInput: the model was not profiled with this tensor-parallel degree and algorithm.
        """
        if (paths := self.ops.get((model, tensor, algorithm))) is None:
            what = f"has no profile {model}_mbs*_tp{tensor}_algo{algorithm}.csv, which the plan needs"
            known = ", ".join(sorted({f"{m}_tp{t}_algo{a}" for m, t, a in self.ops}))
            raise InvalidInput(what, where=str(self.folder), remedy=f"Profiled: {known}.")
        return paths


def _by_name(root: Path) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for path in sorted(root.rglob("*")):
        if path.suffix in (".csv", ".json") and path.is_file():
            if path.name in paths:
                what = f"{paths[path.name].parent} has a file '{path.name}' too"
                raise InvalidInput(what, where=str(path), remedy="Import one cluster at a time.")
            paths[path.name] = path
    return paths


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV file with a header: the place for errors, and the values by column.

    Raises:
        InvalidInput: unreadable, a column is missing or listed twice, or a row has another number of values (with its
            line).
    """
    lines = list(_lines(path))
    if not lines:
        raise InvalidInput("the file is empty", where=str(path), remedy="Write it again.")
    header = lines[0][1]
    for column in columns:
        if header.count(column) != 1:
            what = f"has {header.count(column)} columns '{column}', must be 1"
            raise InvalidInput(what, where=f"{path}, line 1", remedy=f"A header names: {', '.join(columns)}.")
    for number, line in lines[1:]:
        where = f"{path}, line {number}"
        if len(line) != len(header):
            remedy = "Write one value for each column."
            raise InvalidInput(f"has {len(line)} values for {len(header)} columns", where=where, remedy=remedy)
        yield where, dict(zip(header, line, strict=True))


def read_amounts(path: Path) -> list[tuple[str, list[str]]]:
    """Return the lines of a CSV file without a header, each with its place for errors.

    Raises:
        InvalidInput: unreadable.
    """
    return [(f"{path}, line {number}", line) for number, line in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        yield from ((reader.line_num, [cell.strip() for cell in line]) for line in reader if any(line))
    except csv.Error as error:
        raise InvalidInput(f"not a CSV file: {error}", where=f"{path}, line {reader.line_num}") from None


def amount(text: str, where: str, *, zero: bool = True) -> float:
    """Return a number that is finite and not negative.

    Raises:
        InvalidInput: not such a number, or 0 where that is not allowed.
    """
    try:
        number = float(text)
    except ValueError:
        raise InvalidInput(f"'{text[:40]}' is not a number", where=where, remedy="Write one number.") from None
    if not (math.isfinite(number) and number >= 0 and (zero or number)):
        least = "finite and not negative" if zero else "finite and positive"
        raise InvalidInput(f"is {number}, must be {least}", where=where, remedy="Measure it again.")
    return number
