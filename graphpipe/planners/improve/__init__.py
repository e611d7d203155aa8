"""Changes to a finished plan that shorten its step or make it fit in memory."""
