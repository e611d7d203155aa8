"""A plan cuts a captured model into stage programs: `split.split` is the entry."""
