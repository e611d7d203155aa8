"""What ranks do in the tests of numbers that are added up at the end of a step."""

import random
import time

from graphpipe.run.comm.scalar_sum import Numbers
from graphpipe.run.comm.world import join

STEPS = 6


def add_up(root: int) -> list[list[float]]:
    """Add up different numbers in every step, ranks coming to it in any order."""
    world = join("cpu", 30)
    numbers = Numbers(world, count=2, root=root)
    generator, sums = random.Random(world.rank), []
    for step in range(STEPS):
        numbers.expect()
        time.sleep(generator.uniform(0, 0.01))
        sums.append(numbers.add_up([float(world.rank), 0.1 * step]))
    return sums
