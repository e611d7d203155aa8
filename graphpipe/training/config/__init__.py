"""The configuration of a training: settings, their sources and optimizers."""
