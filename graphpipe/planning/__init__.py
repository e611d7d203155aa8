"""Planning: what a plan is asked for (`settings`), and the functions that answer it (`plan`, `hand_plan`).

`plan` gives a planner its problem, and chooses a schedule (`choose_schedule`, `best_candidate`), splits
(`choose_splits`) and weights (`without_flush`) around it. `honoured` refuses settings that a plan would not follow.
"""
