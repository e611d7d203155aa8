"""Whether the forward of a stage keeps something from one micro-batch to the next: a counter, a moving mean.

Plain PyTorch calls it once for each mini-batch, and a pipeline once for each micro-batch. Norms over the batch do so in
every pipeline, as the limits say. Of others, the user is told.
"""

from torch import Tensor

from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.run.stage.losses.parts_of_samples import Samples, away, computed, is_rounding, results
from graphpipe.run.stage.losses.undisturbed import as_before, undisturbed
from graphpipe.run.stage.tensor_tree import leaves
from graphpipe.user_frames import warn_user

_SHOWN = 3
_REMEDY = (
    "A pipeline calls it for each micro-batch, plain PyTorch for each mini-batch. Give the submodule the whole "
    "mini-batch (whole_batch=[...]), or change it between steps."
)


def warn_of_kept_values(program: ModuleStage, samples: Samples, stage: str) -> None:
    """Warn if a forward changes a buffer, or if a second forward computes something else. Nothing is kept.

    Args:
        program: of a stage.
        samples: of a micro-batch.
        stage: its name.
    """
    device = next(iter(samples.values.values())).device
    names = program.buffer_names
    with undisturbed(device):
        try:
            with as_before(program.module):
                before = {name: each.clone() for name, each in program.module.named_buffers()}
                first, second = _values(program, samples), _values(program, samples)
                now = dict(program.module.named_buffers())
                changed = [names.get(name, name) for name, each in before.items() if away(each, now.get(name, each))]
            reads = _differ(first, second) and not _differ(first, _again(program, samples))
        except Exception:  # a second forward may find something of the first one
            return
    if reads:
        what = f"changes {_listed(changed)}" if changed else "changes an attribute"
        warn_user(f"the forward of stage '{stage}' {what} in each call, and computes with it. {_REMEDY}")
    elif changed:
        warn_user(f"the forward of stage '{stage}' changes {_listed(changed)} in each call. {_REMEDY}")


def _again(program: ModuleStage, samples: Samples) -> list[Tensor]:
    # Another result is due to random numbers that are not torch's, if it also comes from the same state.
    found = computed(program, samples)
    return [*found.sent.values(), *found.outputs]


def _values(program: ModuleStage, samples: Samples) -> list[Tensor]:
    sent, result = results(program, {name: value.clone() for name, value in samples.values.items()}, None)
    outputs = leaves(result) if program.is_output else []
    return [each.clone() for each in (*sent.values(), *outputs)]


def _differ(one: list[Tensor], other: list[Tensor]) -> bool:
    return any(not is_rounding(each, like) for each, like in zip(one, other, strict=True))


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the buffer{'s' * (len(names) > 1)} {shown}{more}"
