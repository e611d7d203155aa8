"""Models to plan and to train: the sizes of the literature, and small variants for a laptop.

A model is one file and one entry in `registry`, which finds it by name. `mmt`, `dlrm`, `candle_uno`, `case_study` and
`two_tower` have parallel branches. `attention_residuals`, `unet` and `densenet` have skips. `gpt` is a chain.
`zoo_model` defines what such a file returns, `blocks` the layers that models share, and `synthetic_tasks` data that the
small variants can learn.
"""

from graphpipe.model.zoo.registry import ZOO, zoo
from graphpipe.model.zoo.zoo_model import ZooModel

__all__ = ["ZOO", "ZooModel", "zoo"]
