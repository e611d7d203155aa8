"""Costs of the devices that share a replica of a stage, and of the rings in which devices sum values."""
