"""Published planners that swap and recompute: memory is part of where they cut."""
