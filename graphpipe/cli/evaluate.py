"""`graphpipe evaluate`: the held-out samples of a run's task, with its weights or those of a checkpoint."""

import argparse

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.files.json_body import to_body

EXAMPLE = """\
# in a clone of the repository
graphpipe train examples/digits.toml cluster=local:2 train.steps=4 train.checkpoint_every=2 plan.costs=estimate
graphpipe evaluate runs/digits-1/checkpoints/step-00000002"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers, "evaluate", "evaluate the held-out samples with the weights of a run or a checkpoint", EXAMPLE
    )
    parser.add_argument(
        "source",
        metavar="RUN|CHECKPOINT",
        help="a run (its final weights, or its last checkpoint), a checkpoint of it, or its folder best",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changed settings of the run")
    parser.add_argument(
        "--no-average", action="store_true", help="evaluate the weights themselves, if the run keeps averages of them"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate, and show what was found."""
    from graphpipe.training.evaluate import evaluate
    from graphpipe.training.train import print_to_stderr

    output = Output(args.json)
    averaged = False if args.no_average else None
    found = evaluate(args.source, overrides=args.overrides, averaged=averaged, tell=print_to_stderr)
    if not found.rank:
        values = ({} if found.loss is None else {"loss": found.loss}) | found.metrics
        figures = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        output.show(f"step {found.step} of {found.run}{', averaged weights' * found.averaged}: {figures}")
        output.emit(to_body(found))
    return 0
