"""`graphpipe import`: read another tool's profile as a graph."""

import argparse

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.graph.pipedream import read_pipedream
from graphpipe.graph.piper import read_piper

READERS = {"pipedream": read_pipedream, "piper": read_piper}


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "import", "read another tool's profile as a graph")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--format", required=True, choices=sorted(READERS))
    parser.add_argument("--samples", type=int, metavar="N", help="samples of the profiled batch")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write the graph")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read and save."""
    output = Output(args.json)
    read = READERS[args.format]
    graph = read(args.file) if args.samples is None else read(args.file, samples=args.samples)
    graph.save(args.output)
    output.show(f"{args.output}: graph '{graph.name}', {len(graph.ops)} operators, {len(graph.edges)} edges")
    output.emit({"name": graph.name, "operators": len(graph.ops), "edges": len(graph.edges), "file": args.output})
    return 0
