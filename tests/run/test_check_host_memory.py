"""A run is refused, or ends with the stage and the bytes, where a node lacks memory for what its ranks offload."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from run_chain import INTERLEAVED, chain_pipeline, train_chain
from run_ranks import run_ranks
from torch import nn

from graphpipe.devices.cpu import CPU, HostStream
from graphpipe.devices.cuda import Cuda
from graphpipe.errors import Infeasible, OutOfMemory
from graphpipe.plans.device_memory import host_bytes
from graphpipe.run import check_host_memory
from graphpipe.run.check_host_memory import HostShare, check_shares
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.device.stage_streams import HostStreams
from graphpipe.run.stage.offload import OffloadedTensors, Offloading

OFFLOAD = {1: ("b",), 2: ("c",)}
"""Stage `b` is on the second rank, and `c` on the first."""


def shares(*available: float, hosts: str) -> list[HostShare]:
    return [HostShare(host=host, available_bytes=each) for host, each in zip(hosts, available, strict=True)]


def test_the_ranks_of_a_host_need_their_bytes_together() -> None:
    plan = chain_pipeline(INTERLEAVED, offload=OFFLOAD)[0].plan
    placement, (total,) = RankPlacement.of(plan, 2), host_bytes(plan).values()
    check_shares(placement, shares(total, total, hosts="xx"))
    check_shares(placement, shares(total - 1, total - 1, hosts="xy"))  # each host has only one of the stages
    together = r"stages 'c' and 'b' offload .* 'x', of which .* free: 3 B \(3 bytes\) short"
    for available in ((total, total - 3), (total - 3, total)):
        with pytest.raises(Infeasible, match=together):
            check_shares(placement, shares(*available, hosts="xx"))
    with pytest.raises(Infeasible, match=r"'b' offloads .* 'y', of which 0 B are free"):
        check_shares(placement, shares(total, 0.0, hosts="xy"))


def test_pinned_buffers_are_counted_with_their_rounding() -> None:
    """torch rounds pinned blocks up to powers of two, so a node could lack half of what a run on GPUs took."""
    plan = chain_pipeline(INTERLEAVED, offload=OFFLOAD)[0].plan
    placement, (total,) = RankPlacement.of(plan, 2), host_bytes(plan).values()
    enough, less = (
        [replace(share, rounding=2.0) for share in shares(it, it, hosts="xx")] for it in (2 * total, 2 * total - 1)
    )
    check_shares(placement, enough)
    with pytest.raises(Infeasible, match="1 B"):
        check_shares(placement, less)
    assert (CPU.host_rounding, Cuda().host_rounding) == (1.0, 2.0)


def train_with(available: float) -> None:
    """Train on a host with this many free bytes."""
    with patch.object(check_host_memory, "available_host_bytes", lambda: available):
        train_chain(INTERLEAVED, "1f1b", offload=OFFLOAD)


def test_every_rank_refuses_a_host_that_lacks_memory(tmp_path: Path) -> None:
    for rank in run_ranks(train_with, 2, tmp_path, 100.0):
        assert rank.error.startswith("Infeasible: stages 'c' and 'b' offload ")
        assert "of which 100 B are free" in rank.error


def test_a_plan_that_offloads_nothing_needs_no_free_memory() -> None:
    with patch.object(check_host_memory, "available_host_bytes", lambda: 0.0):
        train_chain(INTERLEAVED, "1f1b")


def test_a_node_that_runs_out_of_memory_is_reported_with_stage_and_bytes() -> None:
    streams = HostStreams(HostStream(), HostStream())
    owner = Offloading("towers", torch.device("cpu"), streams, HostStream())
    with pytest.raises(OutOfMemory, match=r"stage 'towers': the node lacks 1,048,576 TiB that micro-batch 3 offloads"):
        OffloadedTensors(owner, 3, nn.Identity()).host_buffer(2**60)
