"""Rehearsals: real processes and messages, emulated computation."""
