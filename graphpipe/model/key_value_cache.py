"""Key-value caches of models of `transformers`: training does not need them."""

import inspect

from torch import nn


def without_cache(module: nn.Module) -> dict[str, bool]:
    """Return the argument of a forward that switches its key-value cache off; empty if it does not make one.

    Such a model changes the cache in every layer, so a cache cannot be sent between stages.
    """
    found = (getattr(part, "config", None) for part in module.modules())
    configs = {id(each): each for each in found if hasattr(each, "__dict__")}
    inner = [each for config in configs.values() for each in vars(config).values()]  # also those of its towers
    taken = inspect.signature(module.forward).parameters.values()
    accepts = any(parameter.name == "use_cache" or parameter.kind == parameter.VAR_KEYWORD for parameter in taken)
    wanted = any(getattr(each, "use_cache", None) is True for each in [*configs.values(), *inner])
    return {"use_cache": False} if accepts and wanted else {}
