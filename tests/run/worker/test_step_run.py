"""The state of a step: made new for each, and gone with it."""

import gc
from collections.abc import Callable
from weakref import ref

import pytest
from run_chain import INTERLEAVED, chain_batch, chain_pipeline
from torch import Tensor

from graphpipe.run import Pipeline


def broken(output: Tensor, targets: Tensor) -> Tensor:
    """Fail after the forwards of all other stages."""
    raise KeyError("labels")


def fails(pipeline: Pipeline) -> None:
    healthy, pipeline._parts.training.loss_fn = pipeline._parts.training.loss_fn, broken
    with pytest.raises(KeyError, match="labels"):
        pipeline.step(*chain_batch())
    pipeline._parts.training.loss_fn = healthy


def evaluates(pipeline: Pipeline) -> None:
    pipeline.evaluate(*chain_batch())


def trains(pipeline: Pipeline) -> None:
    pipeline.step(*chain_batch())


@pytest.mark.parametrize(("does", "order"), [(trains, "zb-h1"), (evaluates, "1f1b"), (fails, "1f1b")])
def test_what_a_step_held_is_freed_with_it(does: Callable[[Pipeline], None], order: str) -> None:
    # Without the collector of reference cycles: until it runs, they would keep activations on a GPU.
    pipeline, model = chain_pipeline(INTERLEAVED, order)
    outputs: list[ref[Tensor]] = []
    does(pipeline)
    gc.collect()
    gc.disable()
    try:
        for name in ("a", "b", "c", "d"):
            model.get_submodule(name).register_forward_hook(lambda *given: outputs.append(ref(given[-1])))
        does(pipeline)
        assert len(outputs) >= 4
        assert [output() for output in outputs] == [None] * len(outputs)
    finally:
        gc.enable()
