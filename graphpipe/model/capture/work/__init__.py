"""The work of one node of a module graph: floating-point operations, bytes and kernels.

`meter` counts what runs, `flops` has the formulas of operators, and `recurrence` those of recurrent layers.
"""
