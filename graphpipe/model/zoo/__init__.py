"""Models to plan and to train: the shapes of the literature, and small variants for a laptop."""

from graphpipe.model.zoo.registry import ZOO, zoo, zoo_model
from graphpipe.model.zoo.zoo_model import ZooModel

__all__ = ["ZOO", "ZooModel", "zoo", "zoo_model"]
