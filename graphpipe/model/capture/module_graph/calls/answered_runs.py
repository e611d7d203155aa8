"""Runs of an opaque submodule that branches on truth values in tensors, with different answers to its questions."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from graphpipe.model.capture.module_graph.calls.data_flow import Decisions
from graphpipe.model.capture.module_graph.calls.static_run import StaticRun, static_run
from graphpipe.model.torch_private import TreeSpec

Runs = list[tuple[StaticRun, StaticRun]]
"""Pairs of runs, with few and with many samples."""
_MOST_WAYS = 8


def returning_runs(module: nn.Module, spec: TreeSpec, given: Sequence[Sequence[Any]], *, real: bool = False) -> Runs:
    """Return runs with few and with many samples.

    A module that branches on truth values in tensors runs twice, once as if all were true and once as if all were
    false. A run that raises an error is left out, because it ends the training.

    Args:
        module: an opaque submodule.
        spec: the containers of its arguments: (args, kwargs).
        given: the leaves of its arguments, for few and for many samples.
        real: whether the module has real weights, and is given ones.

    Raises:
        Exception: the module's error, if it raises one whatever it decides.
    """
    found: Runs = []
    refused: Exception | None = None
    for answer in (True, False):
        decisions = Decisions(answer=answer)
        try:
            few = static_run(module, spec, given[0], decisions, real=real)
            many = static_run(module, spec, given[1], decisions, few.steps, real=real)
        except Exception as error:
            if not decisions.count:
                raise
            refused = error
            continue
        found.append((few, many))
        if not few.decided:
            return found
    if not found:
        assert refused is not None
        raise refused
    return found


def runs_of_every_way(module: nn.Module, spec: TreeSpec, given: Sequence[Sequence[Any]]) -> Runs:
    """Return runs for every sequence of answers that a module can get, or none if there are many sequences.

    Dynamic RoPE asks whether a sequence is longer than all before, and then perhaps whether it is short again.

    Args:
        module: an opaque submodule.
        spec: the containers of its arguments: (args, kwargs).
        given: the leaves of its arguments, for few and for many samples.
    """
    few, many = (_every_way(module, spec, leaves) for leaves in given)
    return [(few[way], many[way]) for way in few] if few.keys() == many.keys() else []


def _every_way(module: nn.Module, spec: TreeSpec, leaves: Sequence[Any]) -> dict[tuple[bool, ...], StaticRun]:
    # By answers. A question after the first answers gets "yes", and "no" in a further way.
    found: dict[tuple[bool, ...], StaticRun] = {}
    open_ways: list[tuple[bool, ...]] = [()]
    tried = 0
    while open_ways:
        first = open_ways.pop()
        decisions = Decisions(answer=True, first=first)
        try:
            run = static_run(module, spec, leaves, decisions)
        except Exception:  # it would end the training, as in `returning_runs`
            run = None
        way = (*first, *[True] * (decisions.count - len(first)))
        open_ways += [(*way[:at], False) for at in range(len(first), len(way))]
        tried += 1
        if tried + len(open_ways) > _MOST_WAYS:
            return {}
        if run is not None:
            found[way] = run
    return found
