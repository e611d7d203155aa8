"""Training on one rank or on many: `pipeline` is the entry.

`step` runs one mini-batch on this rank: it calls `stage`, which computes, `comm`, which sends, and `weights`, which
updates. `checkpoint` saves and restores a pipeline, `faults` reports what a rank does, and `rehearse` runs the same
worker with emulated computation. `device` hides what differs between a GPU and a CPU.
"""

from graphpipe.run.comm.rank_placement import RankLayout, ReplicaLayout
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.step.pipeline_options import PipelineOptions

__all__ = ["Pipeline", "PipelineOptions", "RankLayout", "ReplicaLayout"]
