"""When the tasks of devices happen where their order decides it, without a trace."""
