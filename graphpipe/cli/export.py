"""`graphpipe export`: the weights of a run for plain PyTorch, or a plan in the form of another tool."""

import argparse
from pathlib import Path

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.exporters.registry import EXPORTERS, find_exporter
from graphpipe.files.text_file import write_text
from graphpipe.plans import Plan
from graphpipe.user_frames import warn_user

WEIGHTS = "model.safetensors"
EXAMPLE = """\
# in a clone of the repository
graphpipe train examples/digits.toml cluster=local:2 train.steps=4 train.checkpoint_every=2 plan.costs=estimate
graphpipe export runs/digits-1 -o model.safetensors
graphpipe export runs/digits-1/plan.json --format layers
# a chain of stages for another trainer
graphpipe plan gpt --cluster summit:1x4 --batch 64 --planner pipedream --schedule 1f1b --micro-batch 8 -o plan.json
graphpipe export plan.json --format torch-pipelining -o pipeline.py"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "export",
        "write the weights of a run or a checkpoint as safetensors, or a plan for another tool",
        EXAMPLE,
    )
    parser.add_argument(
        "source",
        metavar="RUN|CHECKPOINT|PLAN",
        help="the folder of a run (its final weights, or its last checkpoint), a checkpoint, or a plan file",
    )
    formats = "; ".join(f"{name}: {each.summary}" for name, each in EXPORTERS.items())
    parser.add_argument("--format", metavar="F", help=f"of a plan ({formats})")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"file to write (default: {WEIGHTS}; a plan is printed), or a folder for several files of weights",
    )
    parser.add_argument(
        "--averaged",
        action="store_true",
        help="of a run or a checkpoint: the averages of the weights (evaluation.average_decay)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the weights or the plan."""
    output = Output(args.json)
    if args.format is not None:
        return _export_plan(output, args.source, args.format, args.output)
    from graphpipe.run.export.export_weights import export_weights

    path = args.output or WEIGHTS
    weights = export_weights(_newest(args.source, averaged=args.averaged), path, averaged=args.averaged)
    output.show(f"written to {path}: the model of {weights}")
    output.emit({"checkpoint": str(weights), "output": path})
    return 0


def _newest(source: str, *, averaged: bool) -> Path:
    # The final weights of a run that has ended. Of any other, and of a checkpoint, what was given.
    from graphpipe.training.run_folder.newest_weights import newest_weights
    from graphpipe.training.run_folder.run_folder import RunFolder

    run = RunFolder(Path(source))
    if not run.metrics.exists():
        return run.path
    newest, _ = newest_weights(run, averaged=averaged)
    return run.path if run.checkpoints in newest.parents else newest


def _export_plan(output: Output, source: str, name: str, path: str | None) -> int:
    exporter = find_exporter(name)
    exported = exporter.write(Plan.load(source))
    if path is None:
        output.show(exported.text.rstrip("\n"))
    else:
        write_text(path, exported.text)
        output.show(f"written to {path}: {exporter.summary}")
    for note in exported.notes:
        warn_user(note)
    output.emit({"plan": source, "format": name, "output": path, "notes": list(exported.notes)})
    return 0
