"""Ranks in the tests of scalar sums."""

import random
import time

from graphpipe.run.comm.scalar_sum import ScalarSum
from graphpipe.run.comm.world import join

STEPS = 6


def add_up(root: int) -> list[list[float]]:
    """Sum different numbers in every step; the ranks arrive in different orders."""
    world = join("cpu", 30)
    numbers = ScalarSum(world, count=2, root=root)
    generator, sums = random.Random(world.rank), []
    for step in range(STEPS):
        numbers.expect()
        time.sleep(generator.uniform(0, 0.01))
        sums.append(numbers.add_up([float(world.rank), 0.1 * step]))
    return sums
