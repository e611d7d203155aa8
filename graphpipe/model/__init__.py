"""PyTorch in and out: a module becomes a graph, and a plan for that graph becomes stage programs.

`capture/` makes the graph, `capture_file/` writes and reads it, and `split/` makes one `stage_program` per stage.
`own_loss/` cuts the loss out of a model that computes its own. `dag_module` is the container with which a user declares
a graph, and `inputs` names model inputs. `zoo/` has models to plan and train. All uses of private torch API are in
`torch_private`.
"""

from graphpipe.model.dag_module import DagModule
from graphpipe.model.inputs import name_inputs
from graphpipe.model.stage_program import StageProgram, ValueSpec

__all__ = ["DagModule", "StageProgram", "ValueSpec", "name_inputs"]
