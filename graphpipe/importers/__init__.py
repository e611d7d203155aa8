"""Import of other systems' profiles, plans and clusters as one plan."""
