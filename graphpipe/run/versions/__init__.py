"""Which weights a task reads where mini-batches follow each other without a flush.

`stage_weights` says what a way to keep weights must do. `stored_versions` keeps old versions until their last reader.
`predicted_weights` predicts later versions, with the update of an optimizer from `directions`.
`averaged_weights` reconstructs old versions from an average of the updates.
"""
