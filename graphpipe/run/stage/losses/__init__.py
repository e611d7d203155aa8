"""Losses over micro-batches: which are exact, how they are weighted, and what is refused."""
