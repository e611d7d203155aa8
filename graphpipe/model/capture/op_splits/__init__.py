"""Operators that can be split: finds them in a captured model, and splits their nodes."""
