"""Published planners of other systems, one file each."""
