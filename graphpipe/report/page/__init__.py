"""The HTML page: panels of figures and tables."""
