"""Checkpoints: one folder per saved step, written by all ranks while training continues.

    step-00000012/
      model-00.safetensors, model-01.safetensors           parameters and buffers by name; one file per rank
      optimizer-00.safetensors, optimizer-01.safetensors   tensors of the optimizer's state, as `parameter:slot`
      optimizer-00.json, optimizer-01.json                 the rest of the optimizer's state, and its schedule's
      training.json                                        step, position in the data, random generators, loss scale
      plan.json                                            the plan that was trained
      manifest.json                                        SHA-256 of every file, and the file of every tensor

Only rank 0 writes the last three. To save, `checkpoints` runs these parts in order: `snapshot` copies the state of a
rank in memory; `rank_files` writes the copy, in a thread; on rank 0, `folder` then writes the manifest and renames the
folder, so a folder without `.part` in its name is complete. To load, `folder` finds the newest checkpoint that `verify`
accepts, after it has compared every file with the manifest; `restore` gives its state to the pipeline, on any plan.
`model_tensors`, `optimizer_state` and `training_state` define what is saved; `recut_tensors` cuts and joins what was
saved in other slices of parameters.
"""
