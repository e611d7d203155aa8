"""Several mini-batches without a flush between them: their order of tasks, and which weights each task reads."""
