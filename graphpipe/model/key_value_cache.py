"""Key-value caches of models of `transformers`: training does not need them."""

import inspect

from torch import nn


def without_cache(module: nn.Module) -> dict[str, bool]:
    """Return the argument of a forward that switches its key-value cache off; empty if it does not make one.

    Such a model changes the cache in every layer, so a cache cannot be sent between stages.
    """
    config = getattr(module, "config", None)
    configs = [config, *vars(config).values()] if hasattr(config, "__dict__") else []  # also those of its towers
    taken = inspect.signature(module.forward).parameters.values()
    accepts = any(parameter.name == "use_cache" or parameter.kind == parameter.VAR_KEYWORD for parameter in taken)
    wanted = any(getattr(config, "use_cache", None) is True for config in configs)
    return {"use_cache": False} if accepts and wanted else {}
