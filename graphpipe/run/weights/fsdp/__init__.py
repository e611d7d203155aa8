"""Synchronisations whose replicas hold shards of the weights, by torch's `fully_shard`."""
