"""Writes the graphs of the zoo that come with the package: `make zoo-graphs`."""

from graphpipe.graph import Origin
from graphpipe.model.capture.capture import Captured, capture_again, capture_nodes
from graphpipe.model.inputs import describe
from graphpipe.model.split.record_backward import record_backward
from graphpipe.model.zoo import ZOO, zoo
from graphpipe.zoo_graphs.zoo_graph import DATA, ZooGraph, torch_release

NAMES = [f"{name}{size}" for name in ZOO for size in ("", "-small")]


def new_zoo_graph(name: str, *, compare_modes: bool = True) -> ZooGraph:
    """Return what the file of this model has to hold, from a capture of the model.

    Args:
        name: of the model.
        compare_modes: as for `capture_again`. False takes half the time, and is the same for a model whose glue
            computes the same in training and in evaluation.
    """
    module, inputs = zoo(name, device="meta")
    captured: Captured = (
        capture_nodes(module, inputs)
        if compare_modes
        else capture_again(module, describe(inputs), Origin(method="auto"), compare_modes=False)
    )
    return ZooGraph(torch=torch_release(), graph=captured.graph, backward=record_backward(module, captured))


if __name__ == "__main__":
    for old in DATA.glob("*.json"):
        old.unlink()
    for each in NAMES:
        new_zoo_graph(each).save(each)
