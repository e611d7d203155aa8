"""Balanced mini-batches: an order of the samples in which micro-batches and replicas have about the same work."""
