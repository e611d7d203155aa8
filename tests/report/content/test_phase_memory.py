"""What a replica holds while it starts, trains and saves, by hand."""

from builders import Part, make_plan

from graphpipe.costs import State
from graphpipe.report.content.phase_memory import PhaseMemory, phase_memory


def phases(state: State) -> PhaseMemory:
    """Return the memory of one operator with 64 bytes of weights on two devices, which keeps 1 byte per sample."""
    (found,) = phase_memory(
        make_plan([Part(parameter_bytes=64, micro_batch=2, degree=2, saved_bytes=1.0, state=state)], batch_size=4)
    )
    return found


def test_replicas_that_hold_everything() -> None:
    found = phases("whole")
    assert found.starting == 64 + 64  # the weights, and one tensor that is read
    assert found.saving == 4 * 64 + 64
    assert found.copying == found.saving + 64 + 2 * 64  # a copy of weights and optimizer state
    assert found.training >= 4 * 64


def test_replicas_that_hold_shards() -> None:
    for state in ("all", "layers"):
        found = phases(state)
        assert found.starting == 2 * 64 + 64
        # Gathered weights, shards of weights, gradients and optimizer state, one tensor, and gathered optimizer state.
        assert found.saving == 64 + (64 + 64 + 2 * 64) / 2 + 64 + 2 * 64
        assert found.copying == found.saving + 64
