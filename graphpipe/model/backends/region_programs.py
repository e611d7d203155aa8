"""The program of a region: some operators of a model, which take and return PyTorch's tensors."""

from collections.abc import Collection, Sequence
from graphlib import CycleError, TopologicalSorter

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import Captured
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.stage_graph import stage_graph, stage_module
from graphpipe.model.split.submodules import Submodules
from graphpipe.plans.stage import BackendRegion


def region_program(called: Submodules, captured: Captured, ops: Collection[str]) -> ModuleStage:
    """Return the program of some operators, without the edges of a stage.

    It runs the user's own submodules, as the programs of stages do, and returns every value that other operators read.

    Args:
        called: what the programs of this model call.
        captured: the model.
        ops: of the region.
    """
    home = {node for op in ops for node in captured.nodes[op]}
    mine = [node for node in captured.module_graph.graph.nodes if node in home]
    others = [node for op, nodes in captured.nodes.items() if op not in ops for node in nodes]
    read = {value for node in others for value in captured.values.read_by(node) if value in home}
    sent = sorted(read, key=lambda value: value.name)
    graph, model_inputs, received = stage_graph(captured, mine, sent, {})
    return ModuleStage(
        module=stage_module(called, captured, graph),
        model_inputs=tuple(model_inputs),
        receives={},
        sends={},
        is_output=any(node.op == "output" for node in mine),
        parameter_names={},
        buffer_names={},
        arguments=(*model_inputs, *(value.name for value in received)),
        sent=tuple(value.name for value in sent),
        output_spec=captured.module_graph.output_spec,
        in_evaluation=captured.module_graph.in_evaluation,
    )


def in_order(graph: Graph, regions: Sequence[BackendRegion]) -> list[BackendRegion]:
    """Return the regions in an order in which each only reads from those before it.

    Raises:
        InvalidInput: there is none, because two regions read from each other.
    """
    home = {op: number for number, region in enumerate(regions) for op in region.ops}
    before: dict[int, set[int]] = {number: set() for number in range(len(regions))}
    for edge in graph.edges:
        if edge.source in home and edge.target in home and home[edge.source] != home[edge.target]:
            before[home[edge.target]].add(home[edge.source])
    try:
        return [regions[number] for number in TopologicalSorter(before).static_order()]
    except CycleError:
        what = "two regions read from each other, so neither can run first"
        raise InvalidInput(what, where="regions", remedy="Place the model again.") from None
