"""The graph search of GraphPipe (sections 5 and 6 of the paper)."""
