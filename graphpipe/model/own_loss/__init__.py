"""The loss that a model's own forward computes, made exact over micro-batches."""
