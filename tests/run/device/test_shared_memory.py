"""The simulator's memory of ranks that share replicas equals what torch allocates in a real step."""

from pathlib import Path

import pytest
from run_ranks import run_ranks, values
from run_shared_memory import BATCH, loss_fn, model_of, peaks_of_shared

from graphpipe.cluster import Cluster
from graphpipe.costs import Recompute
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.capture_file.capture_file import save_capture
from graphpipe.model.shards.with_shards import captured_with_shards
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans import Plan
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.profile import profile
from graphpipe.simulator.simulate import simulate

CLUSTER = Cluster.preset("local:4")
ONCE = Effort(repeats=1, most=1, seconds=0.0)
CUTS = {
    "gpt": (("layers.0.*", "layers.1.*"), ("layers.2.*", "layers.3.*", "head*")),
    "llama": (
        ("model.embed_tokens", "model.layers.0.*", "model.layers.1.*"),
        ("model.layers.2.*", "model.layers.3.*", "lm_head"),
    ),
}
WAYS: dict[str, tuple[Recompute, bool]] = {
    "kept": ("none", False),
    "recomputed": ("full", False),
    "divided": ("none", True),
    "divided, recomputed": ("full", True),
}
"""Whether activations are kept, and whether ranks divide the sequence."""


@pytest.mark.slow
@pytest.mark.parametrize("model", CUTS)
def test_measured_memory_of_shared_replicas_is_as_predicted(model: str, tmp_path: Path) -> None:
    """The last stage keeps its parts of the logits. The exchanges of a divided sequence once were not counted."""
    module, inputs, targets = model_of(model)
    captured = captured_with_shards(capture_nodes(module, inputs), module, sequence_parallel=True, loss_fn=loss_fn)
    assert save_capture(captured, tmp_path / model)
    costs = profile(
        module,
        inputs,
        CLUSTER,
        captured=captured,
        loss_fn=loss_fn,
        targets=targets,
        batch_sizes=(8,),
        tensor=(1, 2),
        effort=ONCE,
    )
    plans: dict[str, Plan] = {}
    assert [op.name for op in captured.graph.ops if op.shards and op.shards.divides_logits]
    for how, (recompute, divided) in WAYS.items():
        stages = [
            HandStage(ops=ops, devices=(2 * at, 2 * at + 1), micro_batch=8, tensor=2, recompute=recompute)
            for at, ops in enumerate(CUTS[model])
        ]
        made = hand_plan(captured.graph, costs, CLUSTER, batch_size=BATCH, stages=stages, sequence_parallel=divided)
        made.save(tmp_path / f"{model} {how}.json")
        plans[f"{model} {how}"] = made
    by_rank = values(run_ranks(peaks_of_shared, 4, tmp_path / "ranks", str(tmp_path), [*plans]))
    for at, made in enumerate(plans.values()):
        predicted, found = simulate(made).peak_bytes, [peaks[at] for peaks in by_rank]
        assert (predicted[0], predicted[2]) == (predicted[1], predicted[3])
        assert [predicted[0], predicted[2]] == pytest.approx([min(found[:2]), min(found[2:])], rel=0.10)
