"""Random numbers of tasks, and the state of the generators."""

import torch

from graphpipe.run.device.rng import derive_seed, preserve_rng_state, seed


def test_random_numbers_depend_only_on_the_key_and_do_not_move_the_generator() -> None:
    device = torch.device("cpu")
    torch.manual_seed(5)
    plain = torch.rand(3)
    torch.manual_seed(5)
    with preserve_rng_state(device):
        seed(device, derive_seed(0, 1, 2, 3))
        first = torch.rand(4)
    assert torch.equal(torch.rand(3), plain)
    with preserve_rng_state(device):
        seed(device, derive_seed(0, 1, 2, 3))
        assert torch.equal(torch.rand(4), first)
    with preserve_rng_state(device):
        seed(device, derive_seed(0, 1, 3, 2))
        assert not torch.equal(torch.rand(4), first)
