"""Whether this machine can do what the other rooms ask of it; what concerns torch is in `run`."""

from graphpipe.doctor.finding import Finding, Status

__all__ = ["Finding", "Status"]
