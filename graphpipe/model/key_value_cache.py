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
    accepts = any(each.name == "use_cache" or each.kind == each.VAR_KEYWORD for each in taken)
    return {"use_cache": False} if accepts and any(getattr(each, "use_cache", None) is True for each in configs) else {}
