"""Measures on this machine what a model costs: the entry is `profile.profile`, which returns a cost table.

`op_runs` yields the real code of every operator with the real inputs it reads. `profile_ops` times these runs, with the
number of repetitions from `effort`, and fits a curve to each with `fit_curve`. `op_memory` measures their temporary
memory. `known_costs` keeps measured costs for later commands. `step_overheads` times the optimizer
and what the runtime adds around an operator. `contention` runs copies of the process during the measurement, because
ranks of one machine slow each other down.
"""
