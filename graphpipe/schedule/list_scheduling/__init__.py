"""List scheduling: orders built task by task with simulated times."""
