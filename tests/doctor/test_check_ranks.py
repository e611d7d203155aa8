"""`graphpipe doctor` checks torch and the ranks."""

from pathlib import Path

import pytest
import torch
from run_jobs import check_ranks_with
from run_ranks import run_ranks, values

from graphpipe.doctor.check_ranks import differences, environment
from graphpipe.doctor.check_torch import check_torch, check_version

OWN = environment(torch.device("cpu"))


def test_the_installed_torch_works() -> None:
    found = {finding.name: finding for finding in check_torch()}
    assert found["torch"].what == torch.__version__
    assert {"torch", "gloo"} <= found.keys()
    assert not [finding for finding in found.values() if finding.status == "problem"]


@pytest.mark.parametrize(
    ("version", "status"), [("2.11.0", "fine"), ("2.11.0a0+git", "fine"), ("3.0.1+cu130", "fine"), ("2.9.1", "problem")]
)
def test_an_unsupported_version_of_torch_is_found(version: str, status: str) -> None:
    assert check_version(version).status == status


def test_ranks_with_equal_versions_are_fine() -> None:
    (finding,) = differences([OWN, OWN | {"host": "other"}, OWN])
    assert (finding.status, finding.what) == ("fine", "the same versions on 3 ranks of 2 hosts")


def test_ranks_with_different_versions_are_named_with_both_versions() -> None:
    odd = OWN | {"host": "other", "numpy": "1.0"}
    (finding,) = differences([OWN, OWN, odd, odd])
    assert (finding.name, finding.status) == ("numpy of the ranks", "problem")
    assert finding.what == (
        f"rank 2 on other has 1.0, rank 0 on {OWN['host']} has {OWN['numpy']} (2 of 4 ranks differ from rank 0)"
    )
    assert finding.remedy == "Install the same numpy on every host."


def test_different_devices_are_only_a_warning() -> None:
    assert [finding.status for finding in differences([OWN, OWN | {"device": "other"}])] == ["warning"]


@pytest.mark.parametrize(("version", "status"), [(OWN["torch"], "fine"), ("2.0", "problem")])
def test_every_rank_returns_the_same_findings(version: str, status: str, tmp_path: Path) -> None:
    found = values(run_ranks(check_ranks_with, 2, tmp_path, version))
    assert found[0] == found[1]
    (_, *communication), (name, judged, what) = found[0]
    assert communication[0] == "fine"
    assert communication[1].startswith("2 over gloo")
    assert judged == status
    if status == "problem":
        assert name == "torch of the ranks"
        assert "has 2.0, rank 0 on" in what
