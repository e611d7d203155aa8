"""A module becomes a graph of operators: `capture.capture` is the entry."""
