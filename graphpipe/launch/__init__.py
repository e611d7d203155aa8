"""Start the ranks of one machine, watch them, and report why they failed."""
