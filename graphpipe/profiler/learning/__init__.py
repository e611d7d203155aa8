"""Costs that are learned from a run: how much longer the passes of its stages took than their costs say."""
