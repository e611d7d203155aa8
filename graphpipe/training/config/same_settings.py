"""Ranks that torchrun started read the configuration by themselves, and must have read the same one."""

from typing import Any

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.run.comm.world import World
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.config.sources import leaves


def check_same_settings(world: World, config: TrainConfig) -> None:
    """Compare the settings of all ranks; every rank must call this.

    What concerns a host alone is left out: the folder of the configuration, and the section `run` but for `elastic`.

    Raises:
        InvalidInput: on every rank, if a setting differs; names the first one, and its values.
    """
    settings = {".".join(key): value for key, value in leaves(to_body(config)) if _is_of_all(key)}
    ranks: list[dict[str, Any]] = world.exchange(settings)
    for rank, other in enumerate(ranks):
        for key in ranks[0] | other:
            first, here = ranks[0].get(key), other.get(key)
            if first != here:
                raise InvalidInput(
                    f"is {here!r} on rank {rank}, and {first!r} on rank 0",
                    where=key,
                    remedy="Start every rank with the same configuration, overrides and GRAPHPIPE__ variables.",
                )


def _is_of_all(key: tuple[str, ...]) -> bool:
    return key == ("run", "elastic") or key[0] not in ("folder", "run")
