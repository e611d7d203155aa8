"""`graphpipe doctor`: check the installation, and say what to do."""

import argparse
import os
from collections.abc import Sequence

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.doctor import Finding
from graphpipe.doctor.check_extras import check_extras
from graphpipe.doctor.check_machine import check_machine
from graphpipe.doctor.check_network import check_network
from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import from_body, to_body
from graphpipe.report import findings_table

CANNOT_WORK, RANKS_FAILED = 2, 4

EXAMPLE = "graphpipe doctor --ranks 2"


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "doctor", "check the installation, and say what to do", EXAMPLE)
    parser.add_argument("--ranks", type=int, default=0, metavar="N", help="also start N local ranks, and compare them")
    parser.add_argument("--port", type=int, default=0, metavar="P", help="where they meet (default: any free port)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check; under torchrun every rank does, and rank 0 shows it.

    Returns:
        0 where all can work, if not at its best; 2 where something cannot; 4 where only the ranks cannot.
    """
    if args.ranks < 0:
        raise InvalidInput(f"is {args.ranks}, must not be negative", where="--ranks")
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _check_as_rank(args)
    own = [*_check_here(max(1, args.ranks), args.port)]
    ranks = [] if not args.ranks or _problems(own) else _local_ranks(args.ranks, args.port)
    return _show(Output(args.json), own, ranks)


def _check_here(ranks: int, port: int) -> list[Finding]:
    return [*check_machine(ranks), *_check_torch(), *check_network(port), *check_extras()]


def _check_torch() -> list[Finding]:
    try:
        from graphpipe.doctor.check_torch import check_torch
    except (ImportError, OSError) as error:  # a package that is missing, or a library that cannot be loaded
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
    port = args.port if os.environ.get("LOCAL_RANK", "0") == "0" else 0  # One rank of a host can listen there.
    world = join(None, TIMEOUT_SECONDS)
    with world.closing_on_error():
        told = world.exchange([to_body(finding) for finding in _check_here(local, port)])
        ranks = check_ranks(world)
        world.leave()
    everybody = [[from_body(Finding, body, "rank") for body in bodies] for bodies in told]
    own = [*everybody[0], *(_of_rank(rank, it) for rank, its in enumerate(everybody) if rank for it in _bad(its))]
    return _show(Output(args.json), own, ranks) if world.rank == 0 else _code(own, ranks)


def _of_rank(rank: int, finding: Finding) -> Finding:
    name = f"rank {rank}: {finding.name}"
    return Finding(name=name, status=finding.status, what=finding.what, remedy=finding.remedy)


def _show(output: Output, own: Sequence[Finding], ranks: Sequence[Finding]) -> int:
    found = [*own, *ranks]
    output.show(findings_table(found))
    problems, warnings = len(_problems(found)), len(_bad(found)) - len(_problems(found))
    count = {"problem": problems, "warning": warnings}
    words = [f"{number} {word}{'s' * (number > 1)}" for word, number in count.items() if number]
    output.show(", ".join(words) if words else "all is well")
    output.emit({"ok": not problems, "findings": [to_body(finding) for finding in found]})
    return _code(own, ranks)


def _code(own: Sequence[Finding], ranks: Sequence[Finding]) -> int:
    return CANNOT_WORK if _problems(own) else RANKS_FAILED if _problems(ranks) else 0


def _problems(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status == "problem"]


def _bad(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status != "fine"]
