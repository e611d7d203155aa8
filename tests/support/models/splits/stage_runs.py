"""Plans from any assignment of operators to stages, and runs of stage programs in one process."""

import copy
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from hard_models import MODELS
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.graph import Graph, Origin
from graphpipe.model import StageProgram
from graphpipe.model.capture.capture import Captured, capture_again
from graphpipe.model.inputs import describe
from graphpipe.model.torch_private import flatten
from graphpipe.plans import Plan, Stage, StageEdge


@lru_cache
def captured(name: str) -> tuple[nn.Module, Captured]:
    """Return a model of `hard_models` and its capture; the same objects in every test."""
    torch.manual_seed(0)
    build, batch = MODELS[name]
    module = build()
    return module, capture_again(module, describe(batch(1)), Origin(method="export"))


def make_plan(graph: Graph, parts: Sequence[Sequence[str]]) -> Plan:
    """Return a plan whose stages are `parts` (in topological order), with the edges that the graph implies."""
    where = {op: number for number, ops in enumerate(parts) for op in ops}
    crossing: dict[tuple[int, int], dict[tuple[str, str], float]] = {}
    for source, target, value, count in graph.reads:
        if where[source] != where[target]:
            found = crossing.setdefault((where[source], where[target]), {})
            found[value] = max(found.get(value, 0.0), count)
    return Plan(
        graph=graph,
        cluster=Cluster.preset(f"local:{len(parts)}"),
        costs=CostTable(graph_fingerprint=graph.fingerprint, rows=()),
        batch_size=8,
        stages=tuple(
            Stage(name=f"s{number}", ops=tuple(ops), devices=(number,), micro_batch=8, in_flight=8)
            for number, ops in enumerate(parts)
        ),
        edges=tuple(
            StageEdge(source=s, target=t, bytes_per_sample=sum(values.values()))
            for (s, t), values in sorted(crossing.items())
        ),
    )


def random_parts(graph: Graph, seed: int) -> list[list[str]]:
    """Return consecutive pieces of a random topological order.

    The stage graph is acyclic, but a stage need not be connected. Operators that share a parameter may be separated.
    """
    chance = random.Random(seed)
    ready = [op.name for op in graph.ops if not graph.predecessors[op.name]]
    missing = {op.name: len(graph.predecessors[op.name]) for op in graph.ops}
    order: list[str] = []
    while ready:
        order.append(ready.pop(chance.randrange(len(ready))))
        for successor in graph.successors[order[-1]]:
            missing[successor] -= 1
            if not missing[successor]:
                ready.append(successor)
    cuts = {cut for cut in range(1, len(order)) if chance.random() < 0.6}
    bounds = [0, *sorted(cuts), len(order)]
    return [order[start:stop] for start, stop in pairwise(bounds)]


def run_stages(programs: Sequence[StageProgram], plan: Plan, inputs: Mapping[str, Tensor]) -> object:
    """Run the programs in order and return the model's output; all stages share one autograd graph."""
    received: dict[int, dict[str, Tensor]] = {number: {} for number in range(len(programs))}
    output: object = None
    for number, program in enumerate(programs):
        given = {name: inputs[name] for name in program.model_inputs}
        for specs in program.receives.values():
            given |= {spec.name: received[number][spec.name] for spec in specs}
        sent, result = program(given)
        output = result if program.is_output else output
        for position, specs in program.sends.items():
            target = plan.edges[position].target
            assert [spec.name for spec in specs] == [spec.name for spec in programs[target].receives[position]]
            for spec in specs:
                value = sent[spec.name]
                assert tuple(value.shape[1:]) == spec.sample_shape
                assert value.dtype == spec.dtype
                assert value.requires_grad == (spec.requires_grad and torch.is_grad_enabled())
                received[target][spec.name] = value
    return output


def total(output: object) -> Tensor:
    """Return a scalar with a different derivative by every element of the output."""
    tensors = [item for item in flatten(output)[0] if isinstance(item, Tensor) and item.is_floating_point()]
    return sum((torch.sin(t.double() + k).mean() for k, t in enumerate(tensors)), torch.zeros((), dtype=torch.float64))


def assert_same_training(
    module: nn.Module, plan: Plan, programs: Sequence[StageProgram], inputs: Mapping[str, Tensor], *, seed: int = 0
) -> None:
    """Assert that outputs, gradients and buffers of the split model equal those of the plain model."""
    plain = copy.deepcopy(module)
    torch.manual_seed(seed)
    expected = plain(**inputs)
    total(expected).backward()
    torch.manual_seed(seed)
    found = run_stages(programs, plan, {name: tensor.clone() for name, tensor in inputs.items()})
    total(found).backward()
    assert_same(expected, found)
    for (name, theirs), (_, ours) in zip(plain.named_parameters(), module.named_parameters(), strict=True):
        assert (theirs.grad is None) == (ours.grad is None), name
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")
    for (name, theirs), (_, ours) in zip(plain.named_buffers(), module.named_buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")
    module.zero_grad()


def assert_same(expected: object, found: object) -> None:
    """Assert equal tensors in the same containers."""
    (theirs, spec), (ours, our_spec) = flatten(expected), flatten(found)
    assert type(expected) is type(found)
    assert spec == our_spec
    for one, other in zip(theirs, ours, strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)
        else:
            assert one == other
