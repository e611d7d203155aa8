"""Models whose parameters have shapes and no data."""
