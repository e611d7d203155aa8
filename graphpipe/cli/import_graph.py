"""`graphpipe import`: read another tool's profile as a graph, or its profiles and plans as plans."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.cluster.cluster_text import cluster_text
from graphpipe.errors import InvalidInput
from graphpipe.files.text_file import write_text
from graphpipe.graph.import_pipedream import read_pipedream
from graphpipe.graph.import_piper import read_piper
from graphpipe.units import parse_bytes

if TYPE_CHECKING:
    from graphpipe.plans import Plan

READERS = {"pipedream": read_pipedream, "piper": read_piper}
"""Formats of a profile, which becomes a graph."""
FOLDERS = ("aceso", "sailor")
"""Formats of a folder, which becomes plans."""
PIPEEDGE = "pipeedge"
"""The format of a folder of profiles, which becomes a graph, its costs and a cluster."""

EXAMPLE = """\
costs="forward_compute_time=2.0, backward_compute_time=4.0, activation_size=4096.0, parameter_size=65536.0"
printf '%s\\n' "node1 -- Linear -- $costs" "node2 -- Linear -- $costs" > profile.txt
printf '\\tnode1 -- node2\\n' >> profile.txt
graphpipe import profile.txt --format pipedream --samples 64 -o graph.json
graphpipe plan graph.json --cluster local:2 --batch 64"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "import", "read another tool's profiles and plans", EXAMPLE)
    parser.add_argument("file", metavar="FILE", help="a profile; for aceso, sailor and pipeedge, the folder of files")
    parser.add_argument("--format", required=True, choices=sorted((*READERS, *FOLDERS, PIPEEDGE)))
    parser.add_argument("--samples", type=int, metavar="N", help="samples in the profiled batch (pipedream, piper)")
    parser.add_argument("--plan", metavar="NAME", help="only this plan (aceso, sailor; default: all)")
    parser.add_argument("--node-gpus", type=int, metavar="N", help="GPUs of a node (default: aceso 8, sailor 4)")
    parser.add_argument("--memory", metavar="BYTES", help="of a GPU, such as 24GB (aceso; default: enough)")
    parser.add_argument("--model", metavar="NAME", help="the model to read (pipeedge; default: the only one)")
    parser.add_argument(
        "--hosts",
        metavar="TYPE=N,...",
        help="hosts by device type (pipeedge; default: as devices.yml lists them)",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="where to write the graph; for aceso and sailor, the folder for graph, costs, cluster and plan; pipeedge "
        "writes .costs.json and .cluster.toml beside the graph",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the files and write what they describe."""
    _check_options(args)
    output = Output(args.json)
    if args.format in FOLDERS:
        return _import_folder(args, output)
    if args.format == PIPEEDGE:
        return _import_pipeedge(args, output)
    read = READERS[args.format]
    graph = read(args.file) if args.samples is None else read(args.file, samples=args.samples)
    graph.save(args.output)
    output.show(f"{args.output}: graph '{graph.name}', {len(graph.ops)} operators, {len(graph.edges)} edges")
    output.emit({"name": graph.name, "operators": len(graph.ops), "edges": len(graph.edges), "file": args.output})
    return 0


def _check_options(args: argparse.Namespace) -> None:
    aceso = {"--plan": args.plan, "--node-gpus": args.node_gpus, "--memory": args.memory}
    pipeedge = {"--model": args.model, "--hosts": args.hosts}
    surplus = (pipeedge | {"--samples": args.samples}) if args.format in FOLDERS else aceso
    for option, value in (surplus if args.format == PIPEEDGE else surplus | pipeedge).items():
        if value is not None:
            raise InvalidInput(f"does not go with --format {args.format}", where=option, remedy="Leave it out.")


def _import_folder(args: argparse.Namespace, output: Output) -> int:
    from graphpipe.importers.write_plan_parts import write_plan_parts

    memory = parse_bytes(args.memory, "--memory") if args.memory is not None else None
    for option, value in (("--node-gpus", args.node_gpus), ("--memory", memory)):
        if value is not None and value <= 0:
            raise InvalidInput(f"is {value:g}, must be positive", where=option)
    names, read = (_sailor if args.format == "sailor" else _aceso)(args, memory)
    written: list[dict[str, object]] = []
    for name in [args.plan] if args.plan else names:
        plan = read(name)
        folder = Path(args.output) / name
        paths = write_plan_parts(plan, folder)
        sizes = f"{len(plan.graph.ops)} operators, {len(plan.stages)} stages, {len(plan.used_devices)} devices"
        output.show(f"{folder}: {sizes}")
        written.append({"name": name, "files": list(map(str, paths)), "stages": len(plan.stages)})
    output.emit({"plans": written})
    return 0


def _aceso(args: argparse.Namespace, memory: float | None) -> tuple[list[str], Callable[[str], "Plan"]]:
    from graphpipe.importers.aceso_files import AcesoFiles
    from graphpipe.importers.read_aceso import NODE_GPUS, read_aceso

    gpus = args.node_gpus or NODE_GPUS
    names = sorted(AcesoFiles.find(args.file).plans)
    return names, lambda name: read_aceso(args.file, name, node_gpus=gpus, memory_bytes=memory)


def _sailor(args: argparse.Namespace, memory: float | None) -> tuple[list[str], Callable[[str], "Plan"]]:
    from graphpipe.importers.read_sailor import NODE_GPUS, read_sailor
    from graphpipe.importers.sailor_files import SailorFiles

    if memory is not None:
        raise InvalidInput("does not go with --format sailor", where="--memory", remedy="Leave it out.")
    names = sorted(SailorFiles.load(args.file).runs)
    return names, lambda name: read_sailor(args.file, name, node_gpus=args.node_gpus or NODE_GPUS)


def _import_pipeedge(args: argparse.Namespace, output: Output) -> int:
    from graphpipe.importers.read_pipeedge import read_pipeedge

    hosts = None if args.hosts is None else dict(map(_host_count, args.hosts.split(",")))
    imported = read_pipeedge(args.file, model=args.model, hosts=hosts, samples=args.samples)
    graph, base = imported.graph, str(Path(args.output).with_suffix(""))
    costs, cluster = f"{base}.costs.json", f"{base}.cluster.toml"
    graph.save(args.output)
    imported.costs.save(costs)
    write_text(cluster, cluster_text(imported.cluster))
    output.show(
        f"{args.output}: graph '{graph.name}', {len(graph.ops)} operators, {len(graph.edges)} edges",
        f"{costs}: seconds on {len(imported.cluster.device_types)} device types",
        f"{cluster}: {len(imported.cluster.devices)} devices",
    )
    files = {"file": args.output, "costs_file": costs, "cluster_file": cluster}
    output.emit({"name": graph.name, "operators": len(graph.ops), "edges": len(graph.edges)} | files)
    return 0


def _host_count(text: str) -> tuple[str, int]:
    kind, _, count = text.rpartition("=")
    if not kind or not count.isdigit():
        raise InvalidInput(f"'{text}' is not TYPE=N", where="--hosts", remedy="Write board=4,server=2.")
    return kind.strip(), int(count)
