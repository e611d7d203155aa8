"""File formats and file locks, used by every other room."""
