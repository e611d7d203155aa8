"""A captured model as two files, which the ranks of a run read instead of capturing the model again.

Capturing imports torch.export and runs the model on fake tensors, which takes longer than everything else that a rank
does before its first step. The launcher captures the model anyway, to plan or to check the plan.

The files contain only names and tensors: paths of submodules, operators of torch, and a fixed list of functions.
Reading the files does not run any of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, fx

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.files.permissions import with_usual_permissions
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.crossing_values import CrossingValues
from graphpipe.model.capture.module_graph.module_graph import EvaluationOutput, ModuleGraph
from graphpipe.model.capture.reading import Reading
from graphpipe.model.capture_file.node_json import NotWritable, decode, decode_target, encode, encode_target
from graphpipe.model.torch_private import spec_from_json, spec_to_json

_KIND = "capture"


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeRecord:
    """A node of the captured graph, with the properties of its value."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    op: str
    target: Any
    args: Any
    kwargs: Any
    owner: str
    written_by: str | None
    duplicated: bool
    crossing: bool
    sample_shape: tuple[int, ...] | None
    dtype: Any
    requires_grad: bool
    changes: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _CaptureRecord:
    """The JSON file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    graph_sha256: str
    inputs: dict[str, str]
    """Names of the placeholders, by model input."""
    nodes: tuple[_NodeRecord, ...]
    """The nodes, in order of execution."""
    groups: dict[str, tuple[str, ...]]
    """Names of the nodes of every operator."""
    output_spec: str
    modes_differ: bool = False
    evaluation_leaves: tuple[int, ...] | None = None
    """Positions in the output of what the model returns in evaluation, if the modes differ."""
    evaluation_spec: str = ""


def save_capture(captured: Captured, path: Path) -> bool:
    """Write a captured model to `path` (.json), and its constants beside it (.safetensors).

    Returns:
        False, without writing a file, if JSON cannot represent a value of the graph. Ranks then capture the model.
    """
    path.unlink(missing_ok=True)  # before the constants change: the two belong together
    output_spec = spec_to_json(captured.module_graph.output_spec)
    evaluation = captured.module_graph.in_evaluation
    evaluation_spec = "" if evaluation is None else spec_to_json(evaluation.spec)
    if output_spec is None or evaluation_spec is None:
        return False
    try:
        nodes = tuple(_record(node, captured) for node in captured.module_graph.graph.nodes)
    except NotWritable:
        return False
    constants = {name: tensor.detach().contiguous().clone() for name, tensor in captured.module_graph.constants.items()}
    tensors = path.with_suffix(".safetensors")
    with with_usual_permissions(tensors):
        save_file(constants, tensors)
    record = _CaptureRecord(
        graph_sha256=captured.graph.fingerprint,
        inputs={name: node.name for name, node in captured.module_graph.inputs.items()},
        nodes=nodes,
        groups={op: tuple(node.name for node in group) for op, group in captured.nodes.items()},
        output_spec=output_spec,
        modes_differ=evaluation is not None,
        evaluation_leaves=evaluation and evaluation.leaves,
        evaluation_spec=evaluation_spec,
    )
    write_document(path, _KIND, record)
    return True


def load_capture(path: Path, graph: Graph) -> Captured | None:
    """Return the captured model behind `graph` from the files that `save_capture` wrote.

    The readings of a loaded capture have the shapes and dtypes of values. The work of operators is in the graph.

    Returns:
        None if there is no such file, or if it was written for another graph.

    Raises:
        InvalidInput: a file is damaged, or names a function that a captured graph does not call.
    """
    if not path.exists():
        return None
    record = read_document(path, _KIND, lambda body: from_body(_CaptureRecord, body, str(path)))
    if record.graph_sha256 != graph.fingerprint:
        return None
    try:
        constants = load_file(path.with_suffix(".safetensors"))
    except (OSError, SafetensorError) as error:
        raise InvalidInput(f"cannot be read: {error}", where=str(path.with_suffix(".safetensors"))) from None
    nodes = _nodes(record, str(path))
    return _captured(record, graph, nodes, constants, str(path))


def _record(node: fx.Node, captured: Captured) -> _NodeRecord:
    reading = captured.readings[node]
    return _NodeRecord(
        name=node.name,
        op=node.op,
        target=encode_target(node),
        args=encode(node.args),
        kwargs=encode(node.kwargs),
        owner=node.meta.get("owner", ""),
        written_by=node.meta.get("written_by"),
        changes=node.meta.get("changes", ()),
        duplicated=node in captured.values.duplicated,
        crossing=node in captured.values.crossing,
        sample_shape=reading.sample_shape,
        dtype=encode(reading.dtype),
        requires_grad=reading.requires_grad,
        shape=_known(reading.shape),
    )


def _known(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    # A number of rows that depends on values is torch's SymInt.
    return shape if shape is not None and all(type(size) is int for size in shape) else None


def _nodes(record: _CaptureRecord, where: str) -> dict[str, fx.Node]:
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for entry in record.nodes:
        target = decode_target(entry.op, entry.target, where)
        args, kwargs = decode(entry.args, nodes, where), decode(entry.kwargs, nodes, where)
        node = graph.create_node(entry.op, target, args, kwargs, name=entry.name)
        if node.name != entry.name:
            raise InvalidInput(f"two nodes are named '{entry.name}'", where=where)
        node.meta["owner"] = entry.owner
        if entry.written_by is not None:
            node.meta["written_by"] = entry.written_by
        if entry.changes:
            node.meta["changes"] = entry.changes
        nodes[entry.name] = node
    return nodes


def _captured(
    record: _CaptureRecord, graph: Graph, nodes: Mapping[str, fx.Node], constants: dict[str, Tensor], where: str
) -> Captured:
    by_node = {nodes[entry.name]: entry for entry in record.nodes}
    try:
        groups = {op: tuple(nodes[name] for name in names) for op, names in record.groups.items()}
        inputs = {name: nodes[node] for name, node in record.inputs.items()}
    except KeyError as error:
        raise InvalidInput(f"names node {error}, which it does not hold", where=where) from None
    return Captured(
        graph=graph,
        module_graph=ModuleGraph(
            graph=next(iter(nodes.values())).graph,
            inputs=inputs,
            output_spec=spec_from_json(record.output_spec),
            constants=constants,
            in_evaluation=EvaluationOutput(leaves=record.evaluation_leaves, spec=spec_from_json(record.evaluation_spec))
            if record.modes_differ
            else None,
        ),
        values=CrossingValues(
            duplicated=frozenset(node for node, entry in by_node.items() if entry.duplicated),
            crossing=frozenset(node for node, entry in by_node.items() if entry.crossing),
        ),
        readings={
            node: Reading(
                sample_shape=entry.sample_shape,
                dtype=decode(entry.dtype, nodes, where),
                requires_grad=entry.requires_grad,
                shape=entry.shape,
            )
            for node, entry in by_node.items()
        },
        nodes=groups,
    )
