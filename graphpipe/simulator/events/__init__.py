"""When work happens that waits for other work, and shares cores and ports with it."""
