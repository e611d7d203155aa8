"""What one rank reads of a mini-batch, where it does not get the whole of it."""
