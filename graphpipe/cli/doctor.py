"""`graphpipe doctor`: check the installation and suggest repairs."""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.example_files import DIGITS, write_files
from graphpipe.cli.output import Output
from graphpipe.doctor import Finding
from graphpipe.doctor.check_extras import check_extras
from graphpipe.doctor.check_links import check_links
from graphpipe.doctor.check_machine import check_machine
from graphpipe.doctor.check_network import check_network
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body, to_body
from graphpipe.report.tables.findings_table import findings_table
from graphpipe.torchrun import under_torchrun

if TYPE_CHECKING:
    from graphpipe.doctor.first_minutes import StepResult

CANNOT_WORK, RANKS_FAILED = 2, 4

EXAMPLE = "graphpipe doctor --ranks 2"


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "doctor", "check the installation and suggest repairs", EXAMPLE)
    parser.add_argument("--ranks", type=int, default=0, metavar="N", help="also start N local ranks and compare them")
    parser.add_argument(
        "--port", type=int, default=0, metavar="P", help="port on which they connect (default: any free port)"
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="also do the first fifteen minutes of a machine with GPUs, and write a file to send",
    )
    parser.add_argument(
        "-o",
        "--output",
        default="first-minutes",
        metavar="FOLDER",
        help="for the files of --gpu (default: first-minutes)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the checks. Under torchrun every rank does, and rank 0 shows the findings of all.

    Returns:
        0 if everything works, although perhaps not well. 2 if something does not work. 4 if only the ranks do not.
    """
    if args.ranks < 0:
        raise InvalidInput(f"is {args.ranks}, must not be negative", where="--ranks")
    if under_torchrun():
        return _check_as_rank(args)
    if args.gpu:
        return _first_minutes(Output(args.json), Path(args.output))
    own = [*_check_here(max(1, args.ranks), args.port)]
    ranks = [] if not args.ranks or _problems(own) else _local_ranks(args.ranks, args.port)
    return _show(Output(args.json), own, ranks)


def _first_minutes(output: Output, folder: Path) -> int:
    """Run the steps on this machine's GPUs, show each beside what was expected, and write all of it to a file."""
    from graphpipe.devices.registry import usable_accelerator
    from graphpipe.doctor.first_minutes import first_minutes, graphpipe
    from graphpipe.doctor.this_machine import cluster_here

    if (kind := usable_accelerator()) is None:
        output.show("This machine has no GPU that torch can use, so there is nothing to try: see `graphpipe doctor`.")
        output.emit({"ok": False, "steps": []})
        return CANNOT_WORK
    write_files(DIGITS, folder)
    here = cluster_here(kind, folder)
    results: list[StepResult] = []
    for result in first_minutes(here, kind.count(), folder / DIGITS.names[0], folder, graphpipe):
        output.show(f"{result.status:11}  {result.name}: expected {result.expected}; found {result.found}")
        results.append(result)
    body = {"ok": all(each.status != "differs" for each in results), "steps": [to_body(each) for each in results]}
    file = folder / "first-minutes.json"
    file.write_text(json.dumps(body | {"machine": [to_body(each) for each in _check_here(1, 0)]}, indent=1))
    output.show(f"Send this file if something differs: {file}")
    output.emit(body)
    return 0 if body["ok"] else RANKS_FAILED


def _check_here(ranks: int, port: int) -> list[Finding]:
    return [*check_machine(ranks), *_check_torch(), *check_links(), *check_network(port), *check_extras()]


def _check_torch() -> list[Finding]:
    try:
        from graphpipe.doctor.check_torch import check_torch
    except (ImportError, OSError) as error:  # A package is missing, or a library cannot be loaded.
        first = next(iter(str(error).splitlines()), "")
        remedy = "Install torch again for this Python and this system: pytorch.org/get-started."
        return [Finding(name="torch", status="problem", what=f"cannot be imported: {first}", remedy=remedy)]
    return check_torch()


def _local_ranks(ranks: int, port: int) -> list[Finding]:
    from graphpipe.doctor.check_ranks import check_local_ranks

    return check_local_ranks(ranks, port)


def _check_as_rank(args: argparse.Namespace) -> int:
    from graphpipe.doctor.check_ranks import TIMEOUT_SECONDS, check_ranks
    from graphpipe.run.comm.world import join

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    port = (
        args.port if os.environ.get("LOCAL_RANK", "0") == "0" else 0
    )  # Only one rank of a host can listen on the port.
    world = join(None, TIMEOUT_SECONDS)
    with world.closing_on_error():
        received = world.exchange([to_body(finding) for finding in _check_here(local, port)])
        ranks = check_ranks(world)
        world.leave()
    by_rank = [[from_body(Finding, body, "rank") for body in bodies] for bodies in received]
    others = [_of_rank(rank, each) for rank, findings in enumerate(by_rank) if rank for each in _bad(findings)]
    own = [*by_rank[0], *others]
    return _show(Output(args.json), own, ranks) if world.rank == 0 else _code(own, ranks)


def _of_rank(rank: int, finding: Finding) -> Finding:
    name = f"rank {rank}: {finding.name}"
    return Finding(name=name, status=finding.status, what=finding.what, remedy=finding.remedy)


def _show(output: Output, own: Sequence[Finding], ranks: Sequence[Finding]) -> int:
    findings = [*own, *ranks]
    output.show(findings_table(findings))
    problems, warnings = len(_problems(findings)), len(_bad(findings)) - len(_problems(findings))
    count = {"problem": problems, "warning": warnings}
    words = [f"{number} {word}{'s' * (number > 1)}" for word, number in count.items() if number]
    output.show(", ".join(words) if words else "all is well")
    output.emit({"ok": not problems, "findings": [to_body(each) for each in findings]})
    return _code(own, ranks)


def _code(own: Sequence[Finding], ranks: Sequence[Finding]) -> int:
    return CANNOT_WORK if _problems(own) else RANKS_FAILED if _problems(ranks) else 0


def _problems(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status == "problem"]


def _bad(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status != "fine"]
