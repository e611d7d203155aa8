"""Checkpoints: one folder per saved step, written by all ranks while training continues."""
