"""Judges what happened after a fault: how the run ended, whom it named, its weights, and the samples it has seen."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bench.faults.fault_draws import BATCH, STEPS, Draw
from bench.faults.fault_expectations import expected_ending
from bench.faults.fault_runs import Ended, Workshop, has_checkpoint
from bench.record import ROOT
from graphpipe.plans import Plan

FAILED = 4
LAST_LINES = 12
REPORTS = ("graphpipe: error: ", "Lost: ")
"""In the lines that tell of a failure."""


def judge(draw: Draw, folder: Path, ran: Sequence[Ended], shop: Workshop) -> dict[str, Any]:
    """Return the row of a draw. Its `problems` are empty if everything was as it must be."""
    struck = sorted(
        (json.loads(path.read_text()) for path in folder.glob("struck-*")), key=lambda each: each["seconds"]
    )
    row: dict[str, Any] = {**asdict(draw), "seconds": [round(each.seconds, 2) for each in ran]}
    row["codes"] = [each.code for each in ran]
    if not struck:
        problems = [*_whole_run(draw, folder, ran, shop)] if ran[-1].code == 0 else []
        return row | {"struck": False, "problems": problems}
    hit = ran[1] if draw.phase == "resuming" and not draw.case.elastic else ran[0]
    row |= {"struck": True, "expected": expected_ending(draw), "found": _ending(hit, struck[0])}
    problems = ["hung" for each in ran if each.code is None]
    problems += [f"left running: {left}" for each in ran for left in each.left]
    if not _as_expected(draw, row["expected"], row["found"]):
        problems.append(f"{row['found']}, must be: {row['expected']}")
    if row["found"] in ("ends", "recovers") and not _named(draw, hit, struck[0], shop):
        problems.append("the culprit is not named")
    if _is_traceback(hit):
        problems.append("a traceback was printed")
    problems += _whole_run(draw, folder, ran, shop)
    row |= _times(folder, hit, struck[0])
    said = [line for _, line in hit.lines][-LAST_LINES:] if problems else _said(hit, struck[0])
    return row | {"said": [line.replace(f"{ROOT}/", "") for line in said], "problems": problems}


def _ending(hit: Ended, struck: dict[str, Any]) -> str:
    if hit.code == 0:
        return "recovers" if hit.first("Lost: ", after=struck["seconds"]) else "goes on"
    if hit.code == FAILED and not hit.first("stopped by SIG"):
        return "ends"
    return (
        "hangs" if hit.code is None else "stops" if hit.code < 0 or hit.first("stopped by SIG") else f"code {hit.code}"
    )


def _as_expected(draw: Draw, expected: str, found: str) -> bool:
    # A signal that comes later may find a run that has ended in the meantime. Torch refuses some wrong outputs within
    # the stage itself: this is an exception as any other. A limit of the size of files is that of one rank only. Of two
    # ranks that raise, one may be stopped before it has raised. After an earlier loss a plan may use one rank only.
    one_is_left = draw.kind == "two ranks" and (draw.way == "raise" or draw.phase == "resuming")
    recovers = draw.kind == "wrong message" or draw.way == "limit" or one_is_left
    nothing_left = draw.way == "limit" and draw.step == STEPS  # to be written
    later = found == "goes on" and (draw.delay_seconds > 0 or nothing_left)
    return found == expected or later or (found == "recovers" and recovers and draw.case.elastic)


def _named(draw: Draw, hit: Ended, struck: dict[str, Any], shop: Workshop) -> bool:
    said = hit.first(*REPORTS, after=struck["seconds"])
    if said is None:
        return False
    if draw.kind == "nan":
        plan = Plan.load(shop.plan(draw))
        names = [stage.name for stage in plan.stages if draw.culprits[0] in stage.devices]
        return any(f"stage '{name}'" in said[1] for name in names)
    return any(re.search(rf"\brank {rank}\b", said[1].partition("): ")[0]) for rank in draw.culprits)


def _is_traceback(ended: Ended) -> bool:
    return "Traceback (most recent call last)" in ended.text


def _said(hit: Ended, struck: dict[str, Any]) -> list[str]:
    found = hit.first(*REPORTS, after=struck["seconds"])
    return [found[1]] if found else []


def _whole_run(draw: Draw, folder: Path, ran: Sequence[Ended], shop: Workshop) -> Iterator[str]:
    """Yield what is wrong with the weights and the samples once all steps are done."""
    run = folder / "runs" / "run-1"
    # A fault after the results were written leaves nothing to resume.
    was_done = "the training is complete" in ran[-1].text and (run / "metrics.json").exists()
    if ran[-1].code != 0 and not was_done:
        if has_checkpoint(run):
            yield f"the resumed run failed: {ran[-1].text[-600:]}"
        return
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    if steps != [*range(1, STEPS + 1)]:
        yield f"metrics.jsonl has the steps {steps}"
    yield from _samples(folder)
    parts = lineage(run, shop.plan(draw))
    expected = shop.reference(draw, run / "config.json", parts)
    found, wanted = load_file(run / "model.safetensors"), load_file(expected / "model.safetensors")
    different = [name for name, tensor in wanted.items() if name not in found or not torch.equal(found[name], tensor)]
    if different or found.keys() != wanted.keys():
        yield f"other weights than an unbroken run: {', '.join(different)}"


def _samples(folder: Path) -> Iterator[str]:
    # What the last launch that computed a step has seen is what counts.
    launches: defaultdict[int, dict[str, tuple[float, Counter[int]]]] = defaultdict(dict)
    for path in folder.glob("samples-*.jsonl"):
        for line in path.read_text().splitlines():
            note = json.loads(line)
            at, seen = launches[note["step"]].get(note["launch"], (0.0, Counter[int]()))
            seen.update(note["samples"])
            launches[note["step"]][note["launch"]] = (max(at, note["time"]), seen)
    for step in range(1, STEPS + 1):
        by_time = sorted(launches[step].values(), key=lambda each: each[0])
        wanted = Counter(range((step - 1) * BATCH, step * BATCH))
        found = by_time[-1][1] if by_time else Counter[int]()
        if missing := wanted - found:
            yield f"step {step} lost samples {sorted(missing)}"
        if more := found - wanted:
            yield f"step {step} saw samples twice or others: {sorted(more)}"


def lineage(run: Path, first: Path) -> list[tuple[Path, int]]:
    """Return the plans that led to the final weights, each with its last step, from the events of rank 0."""
    files = {Plan.load(path).fingerprint: path for path in (run / "plan.json", *run.glob("plan-*.json"), first)}
    begun: list[tuple[Path, int]] = []
    for line in (run / "events" / "rank-0.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "start" and event["first_step"] <= STEPS:
            begun = [each for each in begun if each[1] < event["first_step"]]
            begun.append((files[event["plan_fingerprint"]], event["first_step"]))
    ends = [start - 1 for _, start in begun[1:]] + [STEPS]
    return [(path, last) for (path, _), last in zip(begun, ends, strict=True)]


def _times(folder: Path, hit: Ended, struck: dict[str, Any]) -> dict[str, float]:
    """Return the seconds from the fault to its message, of planning, and until its step was done again."""
    found: dict[str, float] = {}
    if said := hit.first(*REPORTS, after=struck["seconds"]):
        found["detect_seconds"] = said[0] - struck["seconds"]
    run = folder / "runs" / "run-1"
    if (run / "recoveries.jsonl").exists():
        recoveries = [json.loads(line) for line in (run / "recoveries.jsonl").read_text().splitlines()]
        if recoveries and recoveries[-1]["planning_seconds"] is not None:
            found["planning_seconds"] = recoveries[-1]["planning_seconds"]
            found["steps_repeated"] = recoveries[-1]["steps_lost"]
            found["rerouted"] = float(recoveries[-1]["rerouted"])
    events = run / "events" / "rank-0.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    later = [line for line in lines if line["unix_seconds"] > struck["unix"]]
    starts = [number for number, line in enumerate(later) if line["event"] == "start"]
    again = [line for line in later[starts[0] :] if line["event"] == "step"] if starts else []
    again = [line["unix_seconds"] for line in again if line["step"] >= struck["step"]]
    if again:
        found["again_seconds"] = min(again) - struck["unix"]
    return {name: round(seconds, 3) for name, seconds in found.items()}
