"""Measures on this machine what a model costs: the entry is `profile.profile`, which returns a cost table."""
