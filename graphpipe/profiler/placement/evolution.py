"""Collage's evolutionary search: which groups of operators a backend for whole graphs gets, one bit for each.

References:
    Jeon et al.: Collage. PACT 2022, section 4.3 (graph-level placement): population 50, seeded with all-0 and all-1,
    tournaments of 5, crossover 0.5, mutation 0.2; the fitness is the measured end-to-end time.
"""

from collections.abc import Callable
from random import Random

POPULATION, TOURNAMENT, CROSSOVER, MUTATION = 50, 5, 0.5, 0.2
Genome = tuple[bool, ...]


def evolve(
    groups: int,
    seconds: Callable[[Genome], float],
    *,
    seed: int = 0,
    generations: int = 10,
    population: int = POPULATION,
) -> tuple[float, Genome]:
    """Return the least seconds found and their genome; the same for the same seed and the same seconds.

    Args:
        groups: bits of a genome.
        seconds: of a genome; infinite if it cannot run. Each genome is asked for once.
        seed: of the random numbers.
        generations: after the first.
        population: genomes of a generation. The first has all-0 and all-1.
    """
    random, known = Random(seed), dict[Genome, float]()

    def fitness(genome: Genome) -> float:
        if genome not in known:
            known[genome] = seconds(genome)
        return known[genome]

    now: list[Genome] = [(False,) * groups, (True,) * groups]
    now += [tuple(random.random() < 0.5 for _ in range(groups)) for _ in range(population - 2)]
    for _ in range(generations):
        best = min(now, key=fitness)
        after = [best]
        while len(after) < population:
            one, other = (min(random.choices(now, k=TOURNAMENT), key=fitness) for _ in range(2))
            after.append(_child(one, other, random))
        now = after
    best = min((*known, *now), key=fitness)
    return known[best], best


def _child(one: Genome, other: Genome, random: Random) -> Genome:
    if len(one) > 1 and random.random() < CROSSOVER:
        at = random.randrange(1, len(one))
        one = one[:at] + other[at:]
    if random.random() < MUTATION:
        at = random.randrange(len(one))
        one = (*one[:at], not one[at], *one[at + 1 :])
    return one
