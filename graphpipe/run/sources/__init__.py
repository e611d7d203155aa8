"""Sources of weights that read files. Every rank reads only the tensors, or slices of tensors, of its own stages.

`weights` has the constructors that users call. `file_weights` matches the names of a model with those of files, and a
`TensorReader` for each format reads single tensors.
"""
