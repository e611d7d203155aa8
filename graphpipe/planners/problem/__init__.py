"""What a planner takes and returns."""
