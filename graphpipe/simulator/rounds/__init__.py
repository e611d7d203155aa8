"""Times of rounds, in which devices do tasks of different mini-batches (`schedule.gradient_tasks`)."""
