"""What to do about differences, and what a check left out."""

from graphpipe.equivalence.locate import Place
from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.run.device.fixed_draws import STATISTICS

_MASKS = frozenset(("bernoulli_", "bernoulli", "native_dropout", "rrelu_with_noise"))


def advice(place: Place | None, *, batch_size: int = 0, again: bool = False) -> str:
    """Return what to do about differences, in sentences.

    Args:
        place: where the pipeline begins to differ. None: two plain steps differ from each other.
        batch_size: of the plan.
        again: whether they differ in a second step only.
    """
    if place is None:
        return (
            "Two plain steps with other seeds differ too: the forward or the loss draws random numbers that are not "
            "torch's, so nothing can be compared. Draw them with torch, or make them part of the inputs."
        )
    if again:
        return (
            "The forward or the loss computes something else when it is called again with the same weights and "
            "buffers: it keeps values between calls. A pipeline does what the first call did, or calls it for each "
            "micro-batch. Give the values as inputs, or put that part into a submodule that stays whole and gets the "
            "whole mini-batch: gp.capture(..., whole_batch=[NAME])."
        )
    untrained = [each.name for each in place.differences if each.kind == "untrained"]
    if untrained:
        return (
            f"The pipeline trains only the parameters of the model. Make {untrained[0]} a parameter of a submodule "
            "that the forward calls, or switch its gradient off with requires_grad_(False)."
        )
    if any(each.kind == "elsewhere" for each in place.differences):
        return "Compute that part of the loss in a submodule of the model, next to the parameter, and return it."
    where = f"'{place.behind or place.first}'" if place.behind or place.first else "the code that does it"
    match place.level:
        case "capture":
            after = f" Gradients differ from the output of '{place.behind}' backwards." if place.behind else ""
            return (
                f"The forward does something at {where} that its operators do not show, such as a backward or an "
                f"update of its own.{after} Put it into a submodule of its own, and keep that whole: "
                "gp.capture(..., opaque=[NAME])."
            )
        case "micro-batches":
            return (
                "The loss is not a mean over samples, or the forward compares samples with each other or changes "
                "values in every call. Let the loss return its sum and its weight, name what needs all samples in "
                f"gp.capture(..., whole_batch=[NAME]), or plan with micro_batch={batch_size}."
            )
        case "cut":
            return (
                f"Keep {where} and what it reads in one stage (gp.HandStage), or in one submodule that is kept whole "
                "(gp.capture(..., opaque=[NAME])). Please report it: a cut alone should change nothing."
            )


def notes(plain: StepRecord, *, single: bool) -> tuple[str, ...]:
    """Return what was left out of a comparison, as sentences.

    Args:
        plain: the step in plain PyTorch.
        single: whether the step does not run in double precision.
    """
    found: list[str] = []
    drawn = [name for name in plain.drawn if name != STATISTICS and name not in _MASKS]
    if any(name in _MASKS for name in plain.drawn):
        found.append("dropout was off")
    if drawn:
        found.append(
            f"the forward draws random numbers ({', '.join(drawn)}): all of them were replaced by one number, because "
            "a pipeline draws other numbers than plain PyTorch"
        )
    if STATISTICS in plain.drawn:
        found.append(
            "batch norm used the statistics that it holds: a pipeline computes those of micro-batches (docs/limits.md)"
        )
    if single:
        found.append("the model does not run in double precision, so smaller differences were not seen")
    return tuple(found)
