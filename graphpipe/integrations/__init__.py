"""Front ends: trainers of other libraries that train by a plan. They import what is below, and nothing imports them.

The trainer keeps its loop, its optimizer, its schedules, its callbacks and its checkpoints. The pipeline computes
gradients, and leaves them in the parameters of the user's own model (`GradientPipeline`).
"""
