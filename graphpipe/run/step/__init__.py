"""One mini-batch on one rank."""
