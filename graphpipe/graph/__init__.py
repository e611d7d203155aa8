"""What is computed: the operator graph, its decomposition, and importers of other tools' profiles."""

from graphpipe.graph.import_pipedream import read_pipedream
from graphpipe.graph.import_piper import read_piper
from graphpipe.graph.op_shards import (
    Exchanges,
    OpShards,
    SequenceEntrance,
    SequenceModule,
    SequenceShards,
    ShardFigures,
    ShardStyle,
    SubmoduleShards,
)
from graphpipe.graph.op_split import OpSplit, SplitBranch
from graphpipe.graph.operator import (
    PRECISIONS,
    Edge,
    EdgeValue,
    Input,
    InputLayout,
    InputPart,
    Measured,
    Mixing,
    Op,
    Origin,
    Precision,
    ProductPrecision,
    Read,
    Shared,
    Work,
)
from graphpipe.graph.operator_graph import Graph
from graphpipe.graph.parameter_slice import ParameterSlice, parameter_of
from graphpipe.graph.series_parallel import decompose
from graphpipe.graph.splits.split_names import find_split, splittable
from graphpipe.graph.splits.split_operators import split_ops, with_split
from graphpipe.graph.tree import Leaf, Parallel, Series

__all__ = [
    "PRECISIONS",
    "Edge",
    "EdgeValue",
    "Exchanges",
    "Graph",
    "Input",
    "InputLayout",
    "InputPart",
    "Leaf",
    "Measured",
    "Mixing",
    "Op",
    "OpShards",
    "OpSplit",
    "Origin",
    "Parallel",
    "ParameterSlice",
    "Precision",
    "ProductPrecision",
    "Read",
    "SequenceEntrance",
    "SequenceModule",
    "SequenceShards",
    "Series",
    "ShardFigures",
    "ShardStyle",
    "Shared",
    "SplitBranch",
    "SubmoduleShards",
    "Work",
    "decompose",
    "find_split",
    "parameter_of",
    "read_pipedream",
    "read_piper",
    "split_ops",
    "splittable",
    "with_split",
]
