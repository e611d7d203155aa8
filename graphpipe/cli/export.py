"""`graphpipe export`: the weights of a checkpoint as one file for plain PyTorch."""

import argparse

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output

EXAMPLE = """\
# in a clone of the repository
graphpipe train examples/digits.toml cluster=local:2 train.steps=4 train.checkpoint_every=2 plan.costs=estimate
graphpipe export runs/digits-1 -o model.safetensors"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "export", "write the weights of a checkpoint as one safetensors file", EXAMPLE)
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a checkpoint, or the folder of a run (its last checkpoint)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="model.safetensors", help="file to write (default: model.safetensors)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the weights."""
    from graphpipe.run.checkpoint.export_weights import export_weights

    output = Output(args.json)
    checkpoint = export_weights(args.checkpoint, args.output)
    output.show(f"written to {args.output}: the model of {checkpoint}")
    output.emit({"checkpoint": str(checkpoint), "output": args.output})
    return 0
