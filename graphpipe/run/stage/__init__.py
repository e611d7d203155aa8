"""One replica of a stage, which computes."""
