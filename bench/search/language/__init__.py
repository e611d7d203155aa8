"""Plans for language models whose figures follow from formulas."""
