"""One training step of a few samples, in plain PyTorch or in a pipeline, in a process of its own."""
