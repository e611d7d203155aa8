"""Plans in which devices host several stages."""
