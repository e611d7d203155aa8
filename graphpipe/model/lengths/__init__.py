"""Stage programs for inputs of lengths that lie between those that were captured, without another capture."""
