"""`graphpipe show`: the operators of a model, lists of what there is to choose from, or the schema of a document."""

import argparse
import json
from typing import Any

from rich.table import Table

from graphpipe.cli.arguments import Subparsers, add_precision, add_verb
from graphpipe.cli.model_argument import MODEL_HELP, read_model_argument
from graphpipe.cli.output import Output
from graphpipe.cli.setting_options import add_settings
from graphpipe.cluster.presets import preset_forms
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import cache_folder
from graphpipe.files.json_document import PUBLISHED
from graphpipe.graph import Graph
from graphpipe.planners.registry import all_planners
from graphpipe.planning.settings import PlanSection
from graphpipe.report.tables.styled_table import Column, FittingTable, new_table
from graphpipe.schedule.schedulers.registry import all_schedulers
from graphpipe.units import format_bytes
from graphpipe.zoo_graphs.zoo_graph import zoo_graph_names

EXAMPLE = """\
graphpipe show
graphpipe show mmt-small
graphpipe show --schema stages"""

COLUMNS = (
    Column(heading="operator", right=False),
    Column(heading="kind", right=False, spare=1),
    Column(heading="parameters"),
    Column(heading="out per sample", spare=2),
    Column(heading="reads", right=False, wraps=True, spare=3),
)


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers, "show", "list the operators of a model, or all models, clusters and planners", EXAMPLE
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"{MODEL_HELP}; without it, all names are listed")
    parser.add_argument(
        "--schema",
        metavar="KIND",
        help=f"print the JSON Schema of a kind of document instead: {', '.join(sorted(PUBLISHED))}",
    )
    add_settings(parser, PlanSection, only=("look_into", "cache"))
    add_precision(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show a model's operators in order, or what there is to choose from."""
    output = Output(args.json)
    if args.schema is not None:
        if args.model is not None:
            raise InvalidInput("goes without a model", where="--schema", remedy="Leave one of them out.")
        return _show_schema(output, args.schema)
    if args.model is None:
        names = _names()
        output.show(_names_table(names))
        output.emit(names)
        return 0
    cache = cache_folder() if args.cache else None
    graph = read_model_argument(args.model, cache, args.look_into, args.precision).graph
    output.show(_operators_table(graph), _total(graph))
    output.emit({"name": graph.name, "operators": _operators(graph)})
    return 0


def _show_schema(output: Output, kind: str) -> int:
    from graphpipe.document_schemas import document_schema

    schema = document_schema(kind)
    if output.json:
        output.emit(schema)
    else:
        output.show(json.dumps(schema, indent=1))
    return 0


def _names() -> dict[str, list[str]]:
    return {
        "models": zoo_graph_names(),
        "clusters": preset_forms(),
        "planners": list(all_planners()),
        "schedules": list(all_schedulers()),
    }


def _names_table(names: dict[str, list[str]]) -> Table:
    table = new_table()
    table.add_column("what", no_wrap=True)
    table.add_column("names")
    for what, each in names.items():
        table.add_row(what, ", ".join(each))
    return table


def _operators(graph: Graph) -> list[dict[str, Any]]:
    sources: dict[str, list[str]] = {}
    for edge in graph.edges:
        sources.setdefault(edge.target, []).append(edge.source)
    return [
        {
            "name": op.name,
            "kind": op.kind,
            "parameter_bytes": op.parameter_bytes,
            "output_bytes_per_sample": op.output_bytes_per_sample,
            "reads": sources.get(op.name, []),
        }
        for op in map(graph.__getitem__, graph.order)
    ]


def _operators_table(graph: Graph) -> FittingTable:
    rows = [
        [
            op["name"],
            op["kind"],
            format_bytes(op["parameter_bytes"]),
            format_bytes(op["output_bytes_per_sample"]),
            ", ".join(op["reads"]) or "-",
        ]
        for op in _operators(graph)
    ]
    return FittingTable(title=graph.name, columns=COLUMNS, rows=rows)


def _total(graph: Graph) -> str:
    total = format_bytes(sum(op.parameter_bytes for op in graph.ops))
    return f"{len(graph.ops)} operators, {total} of parameters. A hand-written stage may name them with *."
