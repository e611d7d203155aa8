"""Figures 7 and 9, the case study and appendix A.3 of the paper, and zero bubble on graphs.

Simulated on the analytic V100 of the `summit` preset.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import graphpipe as gp
from bench.case import PLANNERS, SIMULATED, plan_row, summit
from bench.record import save
from bench.tables import markdown
from graphpipe.model.zoo import zoo
from graphpipe.planners.raise_in_flight import with_room
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.plans.stage import StageEdge
from graphpipe.schedule.schedulers.registry import SCHEDULERS
from graphpipe.simulator import predict

SPLIT = [name for name, each in SCHEDULERS.items() if each.splits_backward]
CAPTION = "**Simulated** on the analytic V100 model of the `summit` preset; nothing was measured."


def _ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    if ours["status"] != "ok" or theirs["status"] != "ok":
        return "-"
    return f"{ours['samples_per_second'] / theirs['samples_per_second']:.2f}"


def branches() -> list[dict[str, Any]]:
    """Figure 7: candle-uno with 2 to 16 branches on 32 devices."""
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    for count in (2, 4, 7, 8, 12, 16):
        graph = gp.capture(*zoo("candle-uno", branches=count))
        found = {name: plan_row(graph, f"candle-uno/{count}", 32, 2048, name) for name in ("1f1b", "pipedream")}
        rows += found.values()
        ours, theirs = found["1f1b"], found["pipedream"]
        lines.append([count, _ratio(ours, theirs), ours.get("depth"), theirs.get("depth"),
                      ours.get("micro_batch"), theirs.get("micro_batch")])  # fmt: skip
    header = ["branches", "graphpipe / pipedream", "depth", "depth, pipedream", "micro-batch", "micro-batch, pipedream"]
    markdown("figure7", "Figure 7: branches of candle-uno, 32 devices, 64 samples each", CAPTION, header, lines)
    return rows


def ablation() -> list[dict[str, Any]]:
    """Figure 9: parallel stages alone (the chain's micro-batch), then the graph's own micro-batch, 32 devices."""
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    for model, each in {"mmt": 8, "dlrm": 64, "candle-uno": 64}.items():
        graph = gp.capture(*zoo(model))
        chain = plan_row(graph, model, 32, 32 * each, "pipedream")
        same = plan_row(graph, model, 32, 32 * each, "1f1b", micro_batch=chain["micro_batch"])
        free = plan_row(graph, model, 32, 32 * each, "1f1b")
        split = plan_row(graph, model, 32, 32 * each, "graphpipe")
        rows += [chain, same, free, split]
        lines.append([model, each, _ratio(same, chain), _ratio(free, chain), _ratio(split, chain)])
    header = ["model", "samples/device", "parallel stages", "+ micro-batch", "+ zero bubble"]
    markdown("figure9", "Figure 9: ablation over pipedream, 32 devices", CAPTION, header, lines)
    return rows


def case_study() -> list[dict[str, Any]]:
    """The case study: one partition of two branches on 8 devices, as a graph (depth 4 + head) and as a chain."""
    graph = gp.capture(*zoo("case-study"))
    cluster = gp.Cluster.preset("summit:2x4")
    costs = gp.estimate(graph, cluster)
    rows: list[dict[str, Any]] = []
    for size in (2, 4):
        stages = [
            gp.HandStage(
                name=f"b{branch}l{layer}",
                ops=(f"branch{branch}.layer{layer}.*", *(("concat*", "head*") if (branch, layer) == (1, 3) else ())),
                devices=(4 * branch + layer,),
                micro_batch=size,
            )
            for branch in range(2)
            for layer in range(4)
        ]
        stages = [_without_missing(graph, stage) for stage in stages]
        plan = gp.hand_plan(graph, costs, cluster, batch_size=64, stages=stages)
        for name, found in (("graph", plan), ("chain", _as_chain(plan))):
            seconds = gp.simulate(found).step_seconds
            rows.append({"stages": name, "micro_batch": size, "depth": found.depth, "status": "ok",
                         "samples_per_second": 64 / seconds})  # fmt: skip
    base = next(row for row in rows if (row["stages"], row["micro_batch"]) == ("chain", 2))
    lines = [[row["stages"], row["micro_batch"], row["depth"], _ratio(row, base)] for row in rows]
    header = ["stages", "micro-batch", "depth", "over the chain with micro-batch 2"]
    markdown(
        "case-study", "Case study: the same partition as a graph and as a chain, 8 devices", CAPTION, header, lines
    )
    return rows


def _without_missing(graph: gp.Graph, stage: gp.HandStage) -> gp.HandStage:
    present = tuple(p for p in stage.ops if any(fnmatchcase(op.name, p) for op in graph.ops))
    return replace(stage, ops=present)


def _as_chain(plan: gp.Plan) -> gp.Plan:
    """Return the same stages as a chain, so that the warm-up includes all of them."""
    known = {(edge.source, edge.target): edge for edge in plan.edges}
    for stage in range(len(plan.stages) - 1):
        known.setdefault((stage, stage + 1), StageEdge(source=stage, target=stage + 1, bytes_per_sample=0.0))
    sizes = [stage.micro_batch for stage in plan.stages]
    after = [sorted(t for s, t in known if s == stage) for stage in range(len(sizes))]
    held = in_flight_samples(plan.batch_size, sizes, [1] * len(sizes), after)
    stages = tuple(replace(stage, in_flight=count) for stage, count in zip(plan.stages, held, strict=True))
    return replace(plan, stages=stages, edges=tuple(known[key] for key in sorted(known)), prediction=None)


def chain_model() -> list[dict[str, Any]]:
    """Appendix A.3: on a chain model the graph planner is as fast as the chain planner."""
    graph = gp.capture(*zoo("gpt"))
    rows = [
        plan_row(graph, "gpt", devices, 8 * devices, name) for devices in (4, 8, 16, 32) for name in ("1f1b", "spp")
    ]
    pairs = zip(rows[::2], rows[1::2], strict=True)
    lines = [[ours["devices"], _ratio(ours, theirs)] for ours, theirs in pairs]
    markdown("a3", "Appendix A.3: a sequential model (gpt)", CAPTION, ["devices", "graphpipe / chain planner"], lines)
    return rows


def zero_bubble() -> list[dict[str, Any]]:
    """Zero-bubble schedules against 1F1B on the same stages of mmt, 32 devices, at the peak memory of 1F1B."""
    graph, cluster = gp.capture(*zoo("mmt")), summit(32)
    costs = gp.estimate(graph, cluster)
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    for name in ("published", "1f1b", "spp"):
        for each in (4, 8, 16):
            plan = gp.plan(graph, costs, cluster, batch_size=32 * each, **PLANNERS[name])
            plan = replace(plan, schedule="1f1b", prediction=predict(plan))
            room = with_room(plan, max(needed_bytes(plan).values()))
            found = {"1f1b": plan} | {schedule: replace(room, schedule=schedule) for schedule in SPLIT}
            found["zb-auto, all memory"] = replace(with_room(plan), schedule="zb-auto")
            predictions = {schedule: predict(trial) for schedule, trial in found.items()}
            base = predictions["1f1b"]
            for schedule, it in predictions.items():
                rows.append({"stages_of": name, "samples_per_device": each, "stages": len(plan.stages),
                             "schedule": schedule, "step_seconds": it.step_seconds,
                             "peak_bytes": max(it.peak_bytes)})  # fmt: skip
            ratios = [base.step_seconds / it.step_seconds for it in predictions.values()][1:]
            peaks = [max(it.peak_bytes) / max(base.peak_bytes) for it in predictions.values()][1:]
            assert max(peaks[:-1]) < 1.0001, peaks
            lines.append([name, each, len(plan.stages), *(f"{ratio:.3f}" for ratio in ratios), f"{peaks[-1]:.1f}"])
    header = [
        "stages of",
        "samples/device",
        "stages",
        *(f"{name} / 1f1b" for name in (*SPLIT, "all memory")),
        "its peak",
    ]
    title = "Zero bubble on a graph: the same stages of mmt under 1F1B and with split backwards, 32 devices"
    caption = f"""{CAPTION} `zb-h1` and `zb-auto` need no more memory on any device than 1F1B does on its fullest; the
last two columns are `zb-auto` with all the memory there is: its gain, and its peak in units of 1F1B's."""
    markdown("zero-bubble", title, caption, header, lines)
    return rows


def main() -> None:
    """Run all, write JSON and tables."""
    rows = {part.__name__: part() for part in (branches, ablation, case_study, chain_model, zero_bubble)}
    for name, found in rows.items():
        print(f"saved {save(name.replace('_', '-'), found, simulated=SIMULATED)}")
