"""Weights for other programs: one safetensors file, or a folder of files with an index, as Hugging Face writes them.

`save_model` writes the weights of a pipeline, `export_weights` those of a checkpoint. Both hold one tensor at a time.
"""
