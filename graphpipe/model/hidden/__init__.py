"""What a model does that no trace shows: hooks, compiled modules, uses of tensors outside of operators."""
