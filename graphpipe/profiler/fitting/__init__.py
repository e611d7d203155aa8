"""Curves fitted to measurements, and how well they describe them."""
