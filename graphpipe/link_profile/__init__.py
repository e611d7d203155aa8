"""Measures the links between ranks: latency, bandwidth, and the work of each message."""
