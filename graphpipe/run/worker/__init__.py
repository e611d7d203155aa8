"""A rank's worker: its stage replicas and connections, and the run of one step with them.

`run_step` does the tasks, transfers and reductions of a step in the order of the lowered schedule. What belongs to one
step is made new for each: `step_run`, its `transfers`, and the runs of the replicas. `recorder` measures when
everything happens.
"""
