"""Memory of compiled stages: predicted from costs of compiled layers, from costs of eager layers, and measured.

**Measured** are the most bytes that torch had allocated in a step on the fullest device, with weights, gradients and
the state of AdamW. Each model is cut in the middle of its operators, with a mini-batch of 16 in micro-batches of 4. One
process hosts both stages, or each of two ranks hosts one. `compiled` is the prediction from `profile --compile`, and
`eager` the one from `profile`, each with its distance from what was measured.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch

import graphpipe as gp
from bench.record import append_row, read_rows, save
from bench.running.compiled import ZOO, Case, Pointwise
from bench.running.predicted.prediction_rank import peak_bytes
from bench.tables import markdown
from graphpipe.costs import CostTable
from graphpipe.graph import Graph
from graphpipe.launch.launcher import launch
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.profiler.effort import Effort

NAME = "compiled-memory"
BATCH, MICRO_BATCH, WARM_UP = 16, 4, 4
"""The first step is eager, the second one compiles, and the fourth one checks the loss. The next is measured."""
POINTWISE, LLAMA = "pointwise layers", "llama (Hugging Face)"
MODELS = (POINTWISE, *(name for name in ZOO if name != "candle-uno-small"), LLAMA)
SCHEDULES, RANKS = ("1f1b", "zb-h1"), (1, 2)
ALLOWED = 0.1
QUICK = Effort(repeats=1, repeats_if_uneven=1, seconds=0.0)
"""Times are measured as well, but do not matter here."""


def case_of(name: str) -> tuple[Case, Graph]:
    """Return a model with a mini-batch, the same on every rank, and its graph."""
    torch.manual_seed(0)
    if name == LLAMA:
        return _llama()
    if name == POINTWISE:
        values = torch.randn(BATCH, 128, 64)
        layers = torch.nn.Sequential(*(Pointwise() for _ in range(8)))
        case = Case(name, layers, torch.nn.functional.mse_loss, values, values.flip(1))
    else:
        zoo = zoo_model(name)
        inputs, targets = zoo.batch(torch.Generator().manual_seed(0), BATCH)
        case = Case(name, zoo.module, zoo.loss_fn, inputs, targets)
    return case, gp.capture(case.module, case.inputs)


def _llama() -> tuple[Case, Graph]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, num_attention_heads=4, **sizes))
    words = torch.randint(512, (BATCH, 64))
    held = gp.from_transformers(model, {"input_ids": words, "labels": words})
    inputs, targets = held.batch({"input_ids": words, "labels": words})
    return Case(LLAMA, held.module, held.loss_fn, inputs, targets), held.graph


def costs_of(case: Case, graph: Graph, *, compiled: bool) -> CostTable:
    """Return measured costs."""
    return gp.profile(
        case.module,
        case.inputs,
        gp.Cluster.preset("local:2"),
        graph=graph,
        loss_fn=case.loss_fn,
        targets=case.targets,
        batch_sizes=(MICRO_BATCH, BATCH) if any(op.whole_batch for op in graph.ops) else (MICRO_BATCH,),
        effort=QUICK,
        compile=compiled,
    )


def plan_of(graph: Graph, costs: CostTable, schedule: str, ranks: int) -> gp.Plan:
    """Return the plan of two stages, on one device or on two."""
    half = len(graph.order) // 2
    stages = [
        gp.HandStage(ops=tuple(ops), devices=(at % ranks,), micro_batch=_micro_batch(graph, ops))
        for at, ops in enumerate((graph.order[:half], graph.order[half:]))
    ]
    cluster = gp.Cluster.preset(f"local:{ranks}")
    return gp.hand_plan(graph, costs, cluster, batch_size=BATCH, stages=stages, schedule=schedule)


def _micro_batch(graph: Graph, ops: Sequence[str]) -> int:
    return BATCH if any(graph[op].whole_batch for op in ops) else MICRO_BATCH


def measured(plan: gp.Plan, case: Case, file: Path, *, alone: bool) -> float:
    """Train, and return the most bytes of a step."""
    torch.set_num_threads(1)
    options = gp.PipelineOptions(compile=True, alone=alone)
    optimizer = partial(torch.optim.AdamW, lr=0.0)
    with gp.Pipeline(plan, case.module, case.loss_fn, optimizer, options=options) as pipeline:
        for _ in range(WARM_UP):
            pipeline.step(case.inputs, case.targets)
        return peak_bytes(pipeline, case.inputs, case.targets, file)


def train(job: str) -> None:
    """Train as one of two ranks, and write what it held."""
    plan, rank = gp.Plan.load(job), os.environ["RANK"]
    held = measured(plan, case_of(Path(job).stem)[0], Path(f"{job}.trace-{rank}"), alone=False)
    Path(f"{job}.rank-{rank}").write_text(json.dumps(held))


def held_bytes(plan: gp.Plan, case: Case) -> list[float]:
    """Return what each device held."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / f"{case.name}.json"
        if len(plan.used_devices) == 1:
            return [measured(plan, case, job, alone=True)]
        plan.save(job)
        launch("bench.running.memory.compiled_memory:train", 2, arguments=[str(job)])
        return [json.loads(Path(f"{job}.rank-{rank}").read_text()) for rank in range(2)]


def measure(name: str) -> list[dict[str, Any]]:
    """Return the rows of a model."""
    case, graph = case_of(name)
    costs = {kind: costs_of(case, graph, compiled=kind == "compiled") for kind in ("compiled", "eager")}
    rows: list[dict[str, Any]] = []
    for schedule in SCHEDULES:
        for ranks in RANKS:
            plans = {kind: plan_of(graph, table, schedule, ranks) for kind, table in costs.items()}
            held = held_bytes(plans["compiled"], case)
            predicted = {kind: list(gp.simulate(plan).peak_bytes) for kind, plan in plans.items()}
            rows.append({"model": name, "schedule": schedule, "ranks": ranks, "measured": held, "predicted": predicted})
    return rows


def main(names: Annotated[Sequence[str], MODELS] = (), *, again: bool = False) -> None:
    """Measure what is missing, and write JSON and a table.

    Args:
        names: models to measure. Without names, all of them.
        again: measure everything again.
    """
    known = [] if again else read_rows(NAME)
    for name in names or MODELS:
        if all(row["model"] != name for row in known):
            for row in measure(name):
                print(row, flush=True)
                append_row(NAME, row)
                known.append(row)
    rows = [row for name in MODELS for row in known if row["model"] == name]
    missed = [[row["model"], row["schedule"], row["ranks"]] for row in rows if abs(_distance(row)) > ALLOWED]
    save(NAME, rows, missed=missed, allowed=ALLOWED)
    header = ["model", "schedule", "ranks", "measured, MB", "compiled, MB", "apart", "eager, MB", "apart"]
    caption = (__doc__ or "").partition("\n\n")[2].strip()
    markdown(NAME, "Memory of compiled stages", caption, header, [_line(row) for row in rows])


def _worst(row: dict[str, Any]) -> int:
    return max(
        range(row["ranks"]), key=lambda rank: abs(row["predicted"]["compiled"][rank] / row["measured"][rank] - 1)
    )


def _distance(row: dict[str, Any], kind: str = "compiled") -> float:
    rank = _worst(row)
    return row["predicted"][kind][rank] / row["measured"][rank] - 1


def _line(row: dict[str, Any]) -> list[object]:
    rank = _worst(row)
    predicted = [f"{row['predicted'][kind][rank] / 1e6:.2f}" for kind in ("compiled", "eager")]
    apart = [f"{100 * _distance(row, kind):+.0f} %" for kind in ("compiled", "eager")]
    held = f"{row['measured'][rank] / 1e6:.2f}"
    return [row["model"], row["schedule"], row["ranks"], held, predicted[0], apart[0], predicted[1], apart[1]]


if __name__ == "__main__":
    main()
