"""Tuning: some plans are run for a few steps each, and the fastest is kept."""
