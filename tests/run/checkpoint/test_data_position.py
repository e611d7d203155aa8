"""A data reader that resumes at a saved position yields the same mini-batches as one that was not interrupted."""

import random
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn

from graphpipe.files.json_body import from_body, to_body
from graphpipe.run.checkpoint.training_state import DataPosition
from graphpipe.run.device.random_state import RandomState
from graphpipe.training.task.data_reader import DataReader
from graphpipe.training.task.task import Batch, Task

BATCHES = 3


def epoch(number: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Draw from all random generators at the start of the epoch and for every mini-batch."""
    order = torch.randperm(100)
    for _ in range(BATCHES):
        drawn = [*torch.rand(1).tolist(), random.gauss(0, 1), np.random.normal(), random.random(), np.random.rand()]
        yield {"x": torch.tensor([number, batch_size, seed, *drawn], dtype=torch.float64)}, order[:5]


TASK = Task(module=nn.Identity(), example_inputs=torch.zeros(1), loss_fn=nn.functional.mse_loss, epoch=epoch)


def seed_all() -> None:
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)


def as_lists(batches: Iterator[Batch]) -> list[object]:
    return [(inputs["x"].tolist(), targets.tolist()) for inputs, targets in batches]  # type: ignore[index]


@pytest.mark.parametrize("done", range(1, 2 * BATCHES + 2))
def test_a_reader_resumes_from_any_position(done: int) -> None:
    seed_all()
    expected = as_lists(islice(iter(DataReader(task=TASK, batch_size=4, seed=5, position=DataPosition())), 8))
    assert len({str(batch) for batch in expected}) == 8
    seed_all()
    first = DataReader(task=TASK, batch_size=4, seed=5, position=DataPosition())
    assert as_lists(islice(iter(first), done)) == expected[:done]
    position = from_body(DataPosition, to_body(first.position), "position")
    assert (position.epoch, position.batch) == ((done - 1) // BATCHES, (done - 1) % BATCHES + 1)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    second = DataReader(task=TASK, batch_size=4, seed=5, position=position)
    assert as_lists(islice(iter(second), 8 - done)) == expected[done:]


def test_a_random_state_with_a_stored_gaussian_survives_json() -> None:
    seed_all()
    random.gauss(0, 1)
    np.random.normal()
    state = from_body(RandomState, to_body(RandomState.now()), "random")
    expected = [torch.rand(3).tolist(), random.gauss(0, 1), np.random.normal(), random.random()]
    seed_all()
    state.restore()
    assert [torch.rand(3).tolist(), random.gauss(0, 1), np.random.normal(), random.random()] == expected
