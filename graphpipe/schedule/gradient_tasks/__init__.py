"""Forwards, input gradients and weight gradients as tasks of their own, each on any device, with delayed updates."""
