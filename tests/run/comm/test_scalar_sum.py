"""Scalar sums at the end of a step are the same on every rank, whichever rank ends last."""

import math
from pathlib import Path

import pytest
import torch
from run_ranks import run_ranks, values
from run_scalar_sum import STEPS, add_up

from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.comm.world import join
from graphpipe.run.stage.loss import is_exact, sum_of
from graphpipe.run.step.step_summary import total_norm


@pytest.mark.parametrize("root", [0, 2])
def test_every_rank_gets_the_sums_of_its_step(root: int, tmp_path: Path) -> None:
    for sums in values(run_ranks(add_up, 3, tmp_path, root)):
        assert sums == [[3.0, 0.1 * step + 0.1 * step + 0.1 * step] for step in range(STEPS)]


def test_a_single_rank_gets_its_own_numbers() -> None:
    numbers = ScalarSum(join("cpu", 30), count=2, root=0)
    numbers.expect()
    assert numbers.add_up([1.5, 2.5]) == [1.5, 2.5]


def test_a_sum_is_finite_if_all_its_terms_are() -> None:
    good = torch.randn(50, 3)
    for spoilt in (float("nan"), float("inf"), -float("inf")):
        bad = good.clone()
        bad[17, 1] = spoilt
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            assert torch.isfinite(sum_of(good.to(dtype)))
            assert not torch.isfinite(sum_of(bad.to(dtype)))
        assert not torch.isfinite(sum_of(torch.complex(good, bad)))
    assert torch.isfinite(sum_of(torch.full((100,), 60000.0, dtype=torch.float16)))  # their sum in float16 is infinite
    assert torch.isfinite(sum_of(torch.complex(good, good)))


def test_integer_values_are_not_checked() -> None:
    assert is_exact(torch.arange(3))
    assert is_exact(torch.tensor([True]))
    assert not is_exact(torch.zeros(1))
    assert not is_exact(torch.zeros(1, dtype=torch.complex64))


@pytest.mark.parametrize("large", [1, 600])
def test_the_norm_of_all_gradients_is_finite_if_all_of_them_are(large: int) -> None:
    # Few elements are checked as one vector, many are checked tensor by tensor.
    gradients = [torch.randn(large, 1000), torch.randn(7), torch.randn(()), torch.randn(3, 5).T]
    exact = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients))
    assert total_norm(gradients) == pytest.approx(exact, rel=1e-5)
    for place in range(len(gradients)):
        for spoilt in (float("nan"), float("inf")):
            bad = [gradient.clone() for gradient in gradients]
            bad[place][(-1,) * bad[place].ndim] = spoilt
            assert not math.isfinite(total_norm(bad))
    assert total_norm([]) == 0.0
