"""`graphpipe import`: read another tool's profile as a graph."""

import argparse

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.graph.import_pipedream import read_pipedream
from graphpipe.graph.import_piper import read_piper

READERS = {"pipedream": read_pipedream, "piper": read_piper}

EXAMPLE = """\
costs="forward_compute_time=2.0, backward_compute_time=4.0, activation_size=4096.0, parameter_size=65536.0"
printf '%s\\n' "node1 -- Linear -- $costs" "node2 -- Linear -- $costs" > profile.txt
printf '\\tnode1 -- node2\\n' >> profile.txt
graphpipe import profile.txt --format pipedream --samples 64 -o graph.json
graphpipe plan graph.json --cluster local:2 --batch 64"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "import", "read another tool's profile as a graph", EXAMPLE)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--format", required=True, choices=sorted(READERS))
    parser.add_argument("--samples", type=int, metavar="N", help="samples in the profiled batch")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write the graph")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the profile and write the graph."""
    output = Output(args.json)
    read = READERS[args.format]
    graph = read(args.file) if args.samples is None else read(args.file, samples=args.samples)
    graph.save(args.output)
    output.show(f"{args.output}: graph '{graph.name}', {len(graph.ops)} operators, {len(graph.edges)} edges")
    output.emit({"name": graph.name, "operators": len(graph.ops), "edges": len(graph.edges), "file": args.output})
    return 0
