"""What a planner takes and returns.

`partition` holds the problem, the parts of a partition, and `assemble`, which turns parts into a plan. `options` are
the caller's wishes, `planner` declares a planner's traits, `stage_costs` prices one stage, and `assign_devices` puts
stages on devices.
"""
