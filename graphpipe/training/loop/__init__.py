"""The loop of a training on one rank: its steps, and what happens between them.

`steps` goes from segment to segment. `evaluations` evaluates, and `evaluation_watch` says what follows from it: which
checkpoint is the best, and when to end early. `callbacks` calls the user's own code.
"""
