"""A whole training, from a configuration to a run's folder."""
