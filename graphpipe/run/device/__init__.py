"""One device: streams, clock, memory, random numbers and precision."""
