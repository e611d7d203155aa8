"""A graph, written by hand, with a linear layer over three branches: two operators and an input of the model."""

from graphpipe.graph import Edge, Graph, Input, Op, OpSplit, Origin, SplitBranch, Work

BRANCHES = (
    SplitBranch(source="left", start=0, stop=4, bytes_per_sample=16.0),
    SplitBranch(source="right", start=4, stop=6, bytes_per_sample=8.0),
    SplitBranch(source=None, model_input="x", start=6, stop=8, bytes_per_sample=8.0),
)
LAYER = OpSplit(
    op="head",
    layer="head.linear",
    is_called=False,
    weight="head.linear.weight",
    weight_bytes=160.0,  # 5 outputs, 8 inputs, 4 bytes each
    bias="head.linear.bias",
    bias_bytes=20.0,
    flops_per_sample=80.0,
    output_bytes_per_sample=20.0,
    branches=BRANCHES,
)


def layer_graph() -> Graph:
    """Return the graph, as it would be captured."""
    head = Op(
        name="head",
        kind="Dense",
        parameters=("head.linear.bias", "head.linear.weight"),
        parameter_bytes=180.0,
        output_bytes_per_sample=20.0,
        # concatenation: 32 read, 32 written; product: 32 read, 20 written; activation: 20 read, 20 written
        work=Work(flops_per_sample=80.0, traffic_bytes_per_sample=156.0, saved_bytes_per_sample=52.0, kernels=3),
        model_inputs=("x",),
        splits=(LAYER,),
    )
    ops = (
        Op(name="left", parameters=("left.weight",), parameter_bytes=64.0, output_bytes_per_sample=16.0),
        Op(name="right", parameters=("right.weight",), parameter_bytes=32.0, output_bytes_per_sample=8.0),
        head,
        Op(name="end", parameters=("end.weight",), parameter_bytes=20.0, output_bytes_per_sample=4.0),
    )
    edges = (
        Edge(source="left", target="head", bytes_per_sample=16.0),
        Edge(source="right", target="head", bytes_per_sample=12.0),  # and 4 bytes that `head` reads otherwise
        Edge(source="head", target="end", bytes_per_sample=20.0),
    )
    inputs = (Input(name="x", sample_shape=(2,), dtype="float32"),)
    return Graph(name="layer", ops=ops, edges=edges, inputs=inputs, origin=Origin(method="export"))


WIDE = OpSplit(
    op="end",
    by="outputs",
    layer="end",
    is_called=True,
    weight="end.weight",
    weight_bytes=40.0,  # 5 outputs, 2 inputs
    bias="end.bias",
    bias_bytes=20.0,
    flops_per_sample=20.0,
    output_bytes_per_sample=20.0,
    branches=(SplitBranch(source="start", start=0, stop=5, bytes_per_sample=8.0),),
)


def wide_graph() -> Graph:
    """Return a graph with a linear layer that can be split by outputs."""
    work = Work(flops_per_sample=20.0, traffic_bytes_per_sample=28.0, saved_bytes_per_sample=0.0, kernels=1)
    ops = (
        Op(name="start", parameters=("start.weight",), parameter_bytes=8.0, output_bytes_per_sample=8.0),
        Op(
            name="end",
            parameters=("end.bias", "end.weight"),
            parameter_bytes=60.0,
            output_bytes_per_sample=20.0,
            work=work,
            splits=(WIDE,),
        ),
    )
    edges = (Edge(source="start", target="end", bytes_per_sample=8.0),)
    return Graph(name="wide", ops=ops, edges=edges, origin=Origin(method="export"))


TABLE = OpSplit(
    op="wide",
    by="rows",
    kind="Embedding",
    layer="wide",
    is_called=True,
    weight="wide.weight",
    weight_bytes=40.0,  # 10 rows, 1 column
    bias=None,
    bias_bytes=0.0,
    flops_per_sample=0.0,
    output_bytes_per_sample=24.0,
    branches=(SplitBranch(source=None, model_input="ids", start=0, stop=10, bytes_per_sample=48.0),),
)


def table_graph() -> Graph:
    """Return a graph with an embedding of width 1, whose 6 rows for each sample the same operator adds."""
    wide = Op(
        name="wide",
        kind="Embedding",
        parameters=("wide.weight",),
        parameter_bytes=40.0,
        output_bytes_per_sample=4.0,
        # look-up: 48 read, 24 written; sum: 24 read, 4 written
        work=Work(traffic_bytes_per_sample=100.0, kernels=2),
        model_inputs=("ids",),
        splits=(TABLE,),
    )
    end = Op(name="end", parameters=("end.weight",), parameter_bytes=8.0, output_bytes_per_sample=4.0)
    edges = (Edge(source="wide", target="end", bytes_per_sample=4.0),)
    inputs = (Input(name="ids", sample_shape=(6,), dtype="int64"),)
    return Graph(name="table", ops=(wide, end), edges=edges, inputs=inputs, origin=Origin(method="export"))
