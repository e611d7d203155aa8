"""Compiled stages: regions that `torch.compile` compiles, and their backwards in halves."""
