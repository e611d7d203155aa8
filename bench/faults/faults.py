"""A campaign of faults: runs of `graphpipe train` on local ranks, each with a fault drawn at random.

    python -m bench faults [--count N] [--seed S] [--together 2] [--weights]
                           [--redo] [--again FIRST LAST [--recovering]]

Each draw is appended to `bench/results/faults.jsonl` when it is judged. A second call goes on where the first ended,
until there are N draws. `--redo` carries out those draws again that had a problem, whose folders are kept, and
`--again` those of a range, with `--recovering` only elastic runs that are to recover. What is carried out again
replaces the row before. With `--weights` all faults strike while weights or checkpoints are read or written.
These are a campaign of their own, in `faults-of-weights.jsonl`.
`fault_draws.py` says what is drawn, `fault_expectations.py` what must happen, `fault_checks.py` judges it.
"""

import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count as count_up
from itertools import islice
from pathlib import Path
from statistics import quantiles
from typing import Annotated, Any

from bench.faults.fault_checks import judge
from bench.faults.fault_draws import KINDS, OF_WEIGHTS, WORK, Draw, draw
from bench.faults.fault_expectations import EXPECTED
from bench.faults.fault_runs import SILENCE_SECONDS, Workshop, carry_out
from bench.record import ROOT, append_row, read_rows, save
from bench.tables import markdown

SUPPORT = ROOT / "tests" / "support"
COUNT = 1000
PERCENTILES = (50, 90, 99)
TIMES: Mapping[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "from the fault until it is reported": ("detect_seconds", lambda row: not _silent(row)),
    f"the same of a silent rank (time limit {SILENCE_SECONDS:g} s)": ("detect_seconds", lambda row: _silent(row)),
    "planning for the devices that are left": ("planning_seconds", lambda _: True),
    "from the fault until its step is done again, elastic, rerouted": (
        "again_seconds",
        lambda row: _elastic(row) and bool(row.get("rerouted")),
    ),
    "from the fault until its step is done again, elastic, restarted": (
        "again_seconds",
        lambda row: _elastic(row) and not row.get("rerouted"),
    ),
    "from the fault until its step is done again, resumed by --resume": (
        "again_seconds",
        lambda row: not row["case"]["elastic"] and not _silent(row),
    ),
}
"""What is timed, the field of the rows, and which rows count."""


def _elastic(row: dict[str, Any]) -> bool:
    return row["case"]["elastic"] and row["codes"][0] == 0 and not _silent(row)


def _silent(row: dict[str, Any]) -> bool:
    # Nothing is heard of it until the time limit.
    return row["kind"] == "stop"


def main(
    *,
    count: Annotated[int, range(1, 10**6)] = COUNT,
    seed: int = 0,
    together: Annotated[int, range(1, 65)] = 1,
    weights: bool = False,
    redo: bool = False,
    again: tuple[int, int] = (0, -1),
    recovering: bool = False,
) -> None:
    """Carry out the draws that are missing, and write the summary.

    Args:
        count: draws that there are at the end.
        seed: of the draws.
        together: draws that are carried out at the same time.
        weights: only faults that strike while weights or checkpoints are read or written.
        redo: carry out again what had a problem.
        again: carry out again the draws of a range, given as its first and its last number.
        recovering: of that range, only runs that are to recover.
    """
    # A draw that was carried out again replaces the one before.
    name = "faults-of-weights" if weights else "faults"
    rows = {row["number"]: row for row in read_rows(name) if row["seed"] == seed}
    repeated = {number for number, row in rows.items() if redo and row["problems"]}
    repeated |= {number for number in range(again[0], again[1] + 1) if not recovering or _recovers(draw(seed, number))}
    wanted = islice(_draws(seed, OF_WEIGHTS if weights else WORK), count)
    missing = [each for each in wanted if each.number not in rows or each.number in repeated]
    for row in _carry_out_all(missing, together):
        rows[row["number"]] = row | {"seed": seed}
        append_row(name, rows[row["number"]])
        print(_line(rows[row["number"]]), flush=True)
    summarise(name, [rows[number] for number in sorted(rows)], seed)


def _draws(seed: int, phases: Collection[str]) -> Iterator[Draw]:
    return (drawn for number in count_up() if (drawn := draw(seed, number)).phase in phases)


def _recovers(drawn: Draw) -> bool:
    return drawn.case.elastic and EXPECTED[drawn.kind].elastic == "recovers"


def _carry_out_all(draws: Sequence[Draw], together: int) -> Iterable[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="graphpipe-faults-"))
    os.environ["XDG_CACHE_HOME"] = str(folder)
    sys.path.insert(0, str(SUPPORT))
    from forked_programs import forked_programs  # pyright: ignore[reportMissingImports]

    shop = Workshop(folder, forked_programs())
    with ThreadPoolExecutor(together) as pool:
        for done in as_completed([pool.submit(_carry_out, each, shop) for each in draws]):
            yield done.result()
    if not any(folder.glob("draw-*")):
        shutil.rmtree(folder)


def _carry_out(drawn: Draw, shop: Workshop) -> dict[str, Any]:
    folder, ran = carry_out(drawn, shop)
    try:
        row = judge(drawn, folder, ran, shop)
    except Exception:
        row = {
            "number": drawn.number,
            "kind": drawn.kind,
            "problems": [f"not judged: {traceback.format_exc()[-1500:]}"],
        }
    if not row["problems"]:
        shutil.rmtree(folder)
    return row


def _line(row: dict[str, Any]) -> str:
    words = [
        row["number"],
        row["kind"],
        row.get("way", ""),
        row.get("phase", ""),
        row.get("case", ""),
        row.get("codes", ""),
    ]
    return " ".join(map(str, words)) + " " + ("; ".join(row["problems"]) or "as expected")


def summarise(name: str, rows: Sequence[dict[str, Any]], seed: int) -> None:
    """Write the JSON and the table, and print the totals."""
    struck = [row for row in rows if row.get("struck", True)]
    totals = Counter(problem.partition(":")[0].partition(",")[0] for row in rows for problem in set(row["problems"]))
    times = {
        name: _percentiles([row[field] for row in struck if field in row and counts(row)])
        for name, (field, counts) in TIMES.items()
    }
    by_kind = [
        [kind, len(own), sum(bool(row["problems"]) for row in own), EXPECTED[kind].plain, EXPECTED[kind].elastic]
        for kind in KINDS
        for own in [[row for row in struck if row["kind"] == kind]]
    ]
    compared = sum(row["codes"][-1] == 0 for row in struck)
    caption = (
        f"{len(struck)} faults struck in {len(rows)} runs, "
        f"{sum(bool(row['problems']) for row in rows)} runs have a problem. {compared} runs came to their last step, "
        "alone or resumed: their weights and samples were compared with those of an unbroken run. "
        "Seconds are those of a busy machine of two cores.\n\n"
        + "\n".join(f"- {name}: {_figures(found)}" for name, found in times.items())
    )
    header = ["kind", "struck", "problems", "must happen", "with --elastic"]
    markdown(
        name,
        "Faults while weights are read or written" if "weights" in name else "Campaign of faults",
        caption,
        header,
        by_kind,
    )
    print(caption, dict(totals))
    slim = [{key: value for key, value in row.items() if key != "said"} for row in rows if row["problems"]]
    saved = save(name, slim, seed=seed, draws=len(rows), struck=len(struck), problems=totals, percentiles=times)
    print(f"saved {saved}")


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {"count": len(seconds)}
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"count": len(seconds)} | {f"p{at}": round(cuts[at - 1], 2) for at in PERCENTILES}


def _figures(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}{' s' * name.startswith('p')}" for name, value in found.items())
