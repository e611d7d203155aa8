"""`python -m bench equivalence`: does `gp.check` agree with a comparison of its own kind on random models?

Half of the models have one of the kinds of `random_models`. Whether a pipeline trains a model equally is measured here,
by code that the check does not share: a whole mini-batch in double precision, plain PyTorch against `gp.Pipeline`. A
false alarm is a model that trains equally and that the check says differs. A miss is the other way round. Not compared
are models whose processes took longer than three minutes. Each model is appended to `bench/results/equivalence.jsonl`.
"""

import copy
import json
import os
import random
import select
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

import graphpipe as gp
from bench.equivalence.random_models import FORWARDS, KINDS, LOSSES, WIDE, RandomModel, mean_loss
from bench.record import append_row, read_rows, save
from bench.tables import markdown
from graphpipe.model.capture.capture import Captured, capture_nodes

NAME = "equivalence"
SAMPLES, MICRO_BATCH, SECONDS, FAR = 8, 2, 180, 1e-9


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found for one random model."""

    seed: int
    kind: str
    truth: str
    """`equal`, `differs`, or `refused`, of a whole mini-batch."""
    check: str
    """The same, of the check; `capture` if the model could not be captured."""
    detail: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the check is right. A model that the pipeline refuses may be refused or called different."""
        return self.truth == self.check or (self.truth == "refused" and self.check == "differs")

    @property
    def is_alarm(self) -> bool:
        """Whether the check says that a model differs which trains equally."""
        return self.truth == "equal" and self.check in ("differs", "refused")

    @property
    def is_miss(self) -> bool:
        """Whether the check says that a model is equal which does not train equally."""
        return self.truth in ("differs", "refused") and self.check == "equal"


def draw_kind(draw: random.Random) -> str:
    """Return nothing for half of the models, and a kind for the others."""
    return draw.choice(KINDS) if draw.random() < 0.5 else ""


def answer(seed: int, kind: str | None = None) -> Answer:
    """Return what is found for the model of a seed, in this process.

    Args:
        seed: of the model, its plan and its samples.
        kind: of what is unusual. None: drawn.
    """
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    draw = random.Random(seed)
    drawn = draw_kind(draw)
    kind = drawn if kind is None else kind
    torch.manual_seed(seed)
    model = RandomModel(draw, kind if kind in FORWARDS else "", in_root=draw.random() < 0.3)
    loss_fn = LOSSES[kind]() if kind in LOSSES else mean_loss
    x, y = torch.randn(SAMPLES, WIDE), torch.randint(3, (SAMPLES,))
    y[:2] = torch.tensor([0, 1])  # micro-batches differ in their labels
    y[2:4] = torch.tensor([2, 2])
    split = draw.random() < 0.3
    try:
        captured = capture_nodes(model, x) if not split else _split(model, x)
        plan = _plan(captured, draw)
    except gp.GraphPipeError as error:
        return Answer(seed, kind, "refused", "refused", str(error)[:200])
    truth = _truth(plan, model, loss_fn, x, y, captured)
    try:
        found = gp.check(plan, model, loss_fn, x, y, captured=captured, timeout_seconds=60)
    except gp.InvalidInput as error:
        return Answer(seed, kind, truth, "refused", str(error)[:300])
    return Answer(seed, kind, truth, "equal" if found.equal else "differs", "" if found.equal else str(found)[:600])


def _split(model: nn.Module, x: Tensor) -> Captured:
    graph = gp.capture(model, x, split=["*"])
    assert graph.origin is not None
    return capture_nodes(model, x, graph.origin)


def _plan(captured: Captured, draw: random.Random) -> gp.Plan:
    # Stages of one or several operators, one of them perhaps with two replicas.
    graph = captured.graph
    names, stages = list(graph.order), list[gp.HandStage]()
    device = 0
    while names:
        count = draw.choice((1, 1, 2, 3, 5))
        degree = draw.choice((1, 1, 1, 2))
        rows = draw.choice((MICRO_BATCH, MICRO_BATCH, 2 * MICRO_BATCH))
        recompute: Any = draw.choice(("none", "none", "full"))
        stages.append(
            gp.HandStage(
                ops=tuple(names[:count]),
                devices=tuple(range(device, device + degree)),
                micro_batch=rows,
                recompute=recompute,
            )
        )
        device += degree
        names = names[count:]
    cluster = gp.Cluster.preset(f"local:{device}")
    costs = gp.estimate(graph, cluster)
    schedule = "1f1b" if len({each.micro_batch for each in stages}) == 1 else "kfkb"
    return gp.hand_plan(graph, costs, cluster, batch_size=SAMPLES, stages=stages, schedule=schedule)


Loss = Callable[[Any, Tensor], Tensor]


def _truth(plan: gp.Plan, model: nn.Module, loss_fn: Loss, x: Tensor, y: Tensor, captured: Captured) -> str:
    plain, piped = copy.deepcopy(model), copy.deepcopy(model)
    leaves = [cell.cell_contents for cell in getattr(loss_fn, "__closure__", None) or ()]
    leaf = next((each for each in leaves if isinstance(each, nn.Parameter)), None)
    start = None if leaf is None else leaf.detach().clone()
    expected = loss_fn(plain(x), y)
    torch.optim.SGD([*plain.parameters(), *([] if leaf is None else [leaf])], lr=0.1)
    expected.backward()
    wanted = None
    if leaf is not None:
        with torch.no_grad():
            assert leaf.grad is not None
            wanted = leaf - 0.1 * leaf.grad
        leaf.grad = None
    try:
        options = gp.PipelineOptions(captured=captured)
        with gp.Pipeline(plan, piped, loss_fn, lambda p: torch.optim.SGD(p, lr=0.1), options=options) as pipeline:
            # The weights after one step show what the forward and the optimizer changed.
            found, gradients = pipeline.step(x, y), pipeline.gradients()
    except gp.InvalidInput:
        return "refused"
    except Exception:  # a pipeline that fails where plain PyTorch trains
        return "differs"
    with torch.no_grad():
        for each in plain.parameters():
            if each.requires_grad and each.grad is not None:
                each -= 0.1 * each.grad
    away = [abs(found - expected.item())]
    for name, each in plain.named_parameters():
        if each.requires_grad and ((each.grad is None) != (gradients.get(name) is None)):
            return "differs"
    for one, other in zip(_state(plain), _state(piped), strict=True):
        away.append((one - other).abs().max().item())
    if leaf is not None:
        assert wanted is not None
        assert start is not None
        away.append((leaf.detach() - wanted).abs().item())
        leaf.data.copy_(start)
        leaf.grad = None
    return "equal" if max(away) < FAR * 10 else "differs"


def _state(model: nn.Module) -> list[Tensor]:
    return [each.detach() for each in (*model.parameters(), *model.buffers())]


def apart(seed: int, kind: str | None = None) -> Answer:
    """Return the answer of a process of its own, because capturing some models ends the process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            text = json.dumps(asdict(answer(seed, kind)))
        except BaseException as error:
            text = json.dumps(asdict(Answer(seed, kind or "", "error", "none", repr(error)[:300])))
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], SECONDS)
    text = os.read(reading, 2**16).decode() if ready else ""
    os.close(reading)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not text:
        drawn = draw_kind(random.Random(seed)) if kind is None else kind
        return Answer(seed, drawn, "crash" if ready else "hang", "none")
    return Answer(**json.loads(text))


def main(
    *,
    count: Annotated[int, range(1, 10**6)] = 400,
    most: Annotated[int, range(1, 10**6)] = 10**5,
    redo: bool = False,
) -> None:
    """Run the models that are missing, and write the summary. A call goes on where the last one ended.

    Args:
        count: models in all, with the seeds from 0.
        most: models of this call.
        redo: run those again about which the check was not right.

    Raises:
        SystemExit: the check was wrong about a model.
    """
    known = {row["seed"]: Answer(**row) for row in read_rows(NAME)}
    missing = [seed for seed in range(count) if seed not in known or (redo and not known[seed].agrees)]
    for seed in missing[:most]:
        known[seed] = apart(seed)
        append_row(NAME, asdict(known[seed]))
        if not known[seed].agrees:
            print(f"seed {seed}: {known[seed]}", flush=True)
    answers = [known[seed] for seed in sorted(known)]
    summarise(answers)
    if any(each.is_alarm or each.is_miss for each in answers):
        sys.exit(1)


def summarise(answers: Sequence[Answer]) -> None:
    """Write the JSON and the table, and print the totals."""
    save(NAME, [asdict(each) for each in answers])
    rows = [
        [kind or "ordinary", *_counts([each for each in answers if each.kind == kind])]
        for kind in dict.fromkeys(["", *KINDS])
    ]
    total = ["all", *_counts(answers)]
    headers = ["kind", "models", "train equally", "differ", "refused", "false alarms", "missed", "not compared"]
    caption = (
        f"The check and a comparison that it does not share, on {len(answers)} random models in double precision "
        "(`python -m bench equivalence`)."
    )
    markdown(NAME, "The check on random models", caption, headers, [*rows, total])
    print(dict(zip(headers, total, strict=True)))


def _counts(answers: Sequence[Answer]) -> list[int]:
    truths = Counter(each.truth for each in answers)
    others = sum(not each.agrees and not each.is_alarm and not each.is_miss for each in answers)
    alarms, missed = sum(each.is_alarm for each in answers), sum(each.is_miss for each in answers)
    return [len(answers), truths["equal"], truths["differs"], truths["refused"], alarms, missed, others]
