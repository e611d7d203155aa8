"""Where the segments of a training end. The pipeline drains there, so that a checkpoint can be made.

    segment_steps=4, checkpoint_every=6, 14 steps      steps 1-4 | 5-6 (checkpoint) | 7-8 | 9-12 (checkpoint) | 13-14

An evaluation ends a segment too.

Only step numbers decide. So a resumed training has the same segments, and its losses are the same bit for bit.
"""

from collections.abc import Iterator

from graphpipe.plans import Plan
from graphpipe.training.config.settings import TrainSettings


def flushes(settings: TrainSettings, plan: Plan) -> bool:
    """Return whether the pipeline drains after every step."""
    return settings.gradients_apart != "stash" and plan.weights == "flush"


def segment_ends(settings: TrainSettings, done: int, steps: int, *, flushes: bool) -> Iterator[int]:
    """Yield the last step of every segment, in order.

    Args:
        settings: say how long segments are, and where checkpoints and evaluations are made.
        done: steps done. A segment has ended there.
        steps: of the whole training.
        flushes: the pipeline drains after every step.
    """
    each, every = 1 if flushes else settings.segment_steps, settings.checkpoint_every or steps
    evaluated = settings.eval_every or steps
    while done < steps:
        done = min(*(done - done % length + length for length in (each, every, evaluated)), steps)
        yield done
