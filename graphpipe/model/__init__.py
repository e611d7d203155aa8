"""PyTorch in and out: a module becomes a graph, and a plan for that graph becomes stage programs."""

from graphpipe.model.dag_module import DagModule
from graphpipe.model.inputs import name_inputs
from graphpipe.model.stage_program import StageProgram, ValueSpec

__all__ = ["DagModule", "StageProgram", "ValueSpec", "name_inputs"]
