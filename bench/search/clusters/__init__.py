"""The default planner on random clusters."""
