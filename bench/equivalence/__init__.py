"""Whether plans train random models as plain PyTorch does, and whether the check knows."""
