"""Operators that are split: what a person writes, the graph with their parts, and its verifier."""
