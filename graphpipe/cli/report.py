"""`graphpipe report`: a plan, its predicted step and its run, or several plans, as one HTML page or a picture."""

import argparse
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from graphpipe.cli.arguments import Subparsers, add_verb, add_weights
from graphpipe.cli.output import Output
from graphpipe.cli.report_files import read_subjects
from graphpipe.errors import InvalidInput
from graphpipe.report.content.compared_plan import ComparedPlan
from graphpipe.report.content.subject import Subject
from graphpipe.report.figures.mermaid import mermaid

PICTURES = (".png", ".svg", ".pdf")

EXAMPLE = """\
graphpipe plan mmt --cluster summit:2x4 --batch 64 -o plan.json
graphpipe report plan.json -o report.html"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "report", "show plans, traces and runs as one HTML page, or as a picture", EXAMPLE)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="PLAN|TRACE|RUN",
        help="a plan, its traces, or the folder of a run; several plans are compared",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="report.html, or a picture: .png, .svg or .pdf")
    parser.add_argument("--compare", metavar="FILE", help="output of `graphpipe compare --json`")
    add_weights(parser)
    parser.add_argument("--mermaid", action="store_true", help="print the stage graph for a README")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the files and write the report."""
    output = Output(args.json)
    suffix = Path(args.output).suffix.lower() if args.output else None
    if suffix not in (None, ".html", *PICTURES):
        what = f"'{args.output}' ends with none of .html, {', '.join(PICTURES)}"
        raise InvalidInput(what, where="--output", remedy="The ending decides what is written.")
    if suffix is None and not args.mermaid:
        raise InvalidInput("nothing to write", remedy="Give -o report.html, -o report.png or --mermaid.")
    subjects = read_subjects(args.files, args.compare, args.weights, args.predictor)
    if len(subjects) > 1:
        return _compare(output, subjects, args.output, suffix)
    (subject,) = subjects.values()
    shown = _write(subject, args.output, suffix) if suffix else []
    chart = _mermaid(subject) if args.mermaid else None
    if suffix:
        output.show(f"wrote {args.output}: {', '.join(shown)}")
    if chart and not args.json:
        print(chart, end="")
    output.emit({"output": args.output, "shows": shown, "mermaid": chart, "plan_hash": subject.plan_hash})
    return 0


def _compare(output: Output, subjects: Mapping[str, Subject], path: str, suffix: str | None) -> int:
    if suffix is None:
        what = f"{len(subjects)} plans have {len(subjects)} stage graphs"
        raise InvalidInput(what, where="--mermaid", remedy="Give one plan, or -o comparison.html.")
    compared = [ComparedPlan(name=name, subject=subject) for name, subject in subjects.items()]
    with _drawing_libraries():
        if suffix in PICTURES:
            from graphpipe.report.figures.static_figures import write_compared_still

            shown = write_compared_still(compared, path)
        else:
            from graphpipe.report.page.comparison_page import write_comparison

            shown = write_comparison(" against ".join(subjects), compared, path)
    hashes = {each.name: each.subject.plan_hash for each in compared}
    output.show(f"wrote {path}: {', '.join(shown)}")
    output.emit({"output": path, "shows": shown, "plan_hashes": hashes})
    return 0


def _write(subject: Subject, path: str, suffix: str) -> list[str]:
    with _drawing_libraries():
        if suffix in PICTURES:
            from graphpipe.report.figures.static_figures import write_still

            return write_still(subject, path)
        from graphpipe.report.page.report_page import write_html

        return write_html(subject, path)


@contextmanager
def _drawing_libraries() -> Generator[None]:
    # Inside the block a library that is missing is an error with a remedy.
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = "Install it: pip install 'graphpipe-torch[report]'."
        raise InvalidInput(f"{error.name}, which draws, is not installed", where="--output", remedy=remedy) from None


def _mermaid(subject: Subject) -> str:
    if subject.plan is None:
        raise InvalidInput("a trace has no stage graph", where="--mermaid", remedy="Give the plan too.")
    return mermaid(subject.plan)
