"""Captures of a user's models, kept for later commands: `capture_cache.cached_capture` is the entry.

`model_key` tells models apart by everything that their graphs can depend on. `value_form` writes the values that a
model holds in a form that can be compared, and `user_modules` finds the user's own source files. In doubt there is no
key, and the model is captured.
"""
