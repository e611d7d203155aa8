"""`PipelineStrategy`: a `LightningModule`, whose forwards and backwards a plan divides over the ranks.

from graphpipe.integrations.lightning import PipelineStrategy

Trainer(strategy=PipelineStrategy(), devices=...)
"""

from graphpipe.integrations.lightning.strategy import PipelineStrategy

__all__ = ["PipelineStrategy"]
