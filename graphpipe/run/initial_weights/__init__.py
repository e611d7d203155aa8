"""The weights that a rank begins with: memory for its own stages only, and the source of the values in it.

`own_tensors` says which tensors of the model a rank has. `host_tensors` gives them memory, takes the memory of all
others, and lets a `WeightSource` fill them. `init_weights` is the source that needs no file: `built_weights` runs the
function that builds a model again. Those that read files are in `run.sources`.
"""
