"""What a training reports while it runs.

`telemetry` joins the others: `banner` at the start, `progress` in the terminal, `event_log` on every rank, and
`loggers` for TensorBoard and W&B. A new logger is a subclass of `MetricLogger` and a line in `loggers`.
"""
