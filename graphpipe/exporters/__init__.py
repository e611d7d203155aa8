"""Writes plans in the forms of other tools."""
