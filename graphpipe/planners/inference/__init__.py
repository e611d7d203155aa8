"""The search for plans that do not train: stages of single devices, some of which may stay unused.

`intervals` prices the intervals of a linear order of the operators. `device_kinds` groups devices that may be
exchanged. `chain_program` is the published dynamic programme over both, and `chains` turns its answers into plans.
`parallel_stages` and `small_changes` go beyond chains.
"""
