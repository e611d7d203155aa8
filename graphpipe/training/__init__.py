"""A whole training, from a configuration to a run's folder.

`train` is the entry, from Python and from the command line. It calls `train_locally`, which starts ranks, or
`train_under_torchrun`, whose process is a rank already. Both call `prepare`, which plans and writes the run's folder.
Every rank then runs `train_rank`. `config/`, `task/`, `run_folder/`, `telemetry/` and `elastic/` are its parts.
"""
