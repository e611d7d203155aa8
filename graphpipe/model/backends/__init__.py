"""Backends: other ways to run a region of a model's operators, such as a compiler.

`backend` is the record that a backend declares, and `registry` finds it by name. `region_programs` makes programs of
some operators, and `placed_program` runs them one after the other.
"""
