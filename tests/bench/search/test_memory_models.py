"""The models of the papers on memory: as large as published, and cells that compute."""

import pytest
import torch

from bench.search import memory_models


@pytest.mark.slow
def test_gpt2_medium_has_the_published_parameters():
    graph = memory_models.gpt2()
    tied, vocabulary, hidden = 354_823_168, 50_257, 1024  # Radford et al. 2019, as Hugging Face counts gpt2-medium
    positions = 1024 - memory_models.WORDS
    own_head = vocabulary * hidden + vocabulary
    assert sum(op.parameter_bytes for op in graph.ops) == 4 * (tied - positions * hidden + own_head)


def test_cells_halve_the_resolution_twice_and_double_the_channels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_models, "CELLS", 3)
    monkeypatch.setattr(memory_models, "CHANNELS", 4)
    module = memory_models.Cells()
    maps: list[torch.Size] = []
    for cell in module.cells:
        cell.register_forward_hook(lambda _, __, found: maps.append(found.shape))
    assert module(torch.ones(2, 3, 32, 32)).shape == (2, 1000)
    assert maps == [(2, 16, 8, 8), (2, 32, 4, 4), (2, 64, 2, 2)]  # the stem leaves a quarter; a cell has four groups
