"""What operators save, as they run: the bytes that a graph counts, each piece of memory once."""

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.costs import SavedBytes
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.inputs import name_inputs
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.profiler.operators.op_runs import op_runs
from graphpipe.profiler.saved.saved_values import SavedValues, saved_by_op, saved_values, values_between_halves

SAMPLES = 4


@pytest.mark.parametrize("name", ["mmt-small", "unet-small"])
def test_eager_operators_save_what_the_graph_counts(name: str) -> None:
    zoo = zoo_model(name)
    inputs, _ = zoo.batch(torch.Generator().manual_seed(0), SAMPLES)
    captured = capture_nodes(zoo.module, inputs)
    values = name_inputs(captured.graph.input_layout, inputs)
    found = [
        saved_values(run.op, run.call, run.module, run.sends, run.enter(SAMPLES)[1], SAMPLES)
        for run in op_runs(zoo.module, captured, gp.Cluster.preset("local:1"), values)
    ]
    for op, kept in saved_by_op(found).items():
        assert kept.per_sample == pytest.approx(captured.graph[op].work.saved_bytes_per_sample, rel=0.01), op


def test_memory_counts_once_for_the_operator_that_makes_it() -> None:
    weight = nn.Linear(3, 3, bias=False)

    def made(values: dict[str, Tensor]) -> list[Tensor]:
        out = weight(values["x"]).exp()  # saves itself, and the linear layer saves x
        return [out, out.view(-1, 3)]

    def read(values: dict[str, Tensor]) -> list[Tensor]:
        return [values["view"] * values["view"].sin().detach()]  # the graph of the sine, and what it saved, are gone

    x = torch.randn(2, 3, requires_grad=True)
    first = saved_values("first", made, weight, ("out", "view"), {"x": x.clone()}, 2)
    view = torch.randn(2, 3, requires_grad=True).clone()
    second = saved_values("second", read, None, (), {"view": view}, 2)
    assert first == SavedValues(
        op="first", inside={2: 0.0}, made={"out": {2: 24.0}}, within={"view": "out"}, saves=frozenset({"x", "out"})
    )
    assert second.inside == {2: 24.0}
    assert second.saves == frozenset()
    assert saved_by_op([first, second]) == {
        "first": SavedBytes(per_sample=12.0),  # x is an input of the model
        "second": SavedBytes(per_sample=12.0),
    }


def test_what_does_not_grow_with_samples_counts_once_for_a_forward() -> None:
    found = SavedValues(op="op", inside={2: 110.0, 4: 120.0, 8: 140.0})
    assert saved_by_op([found])["op"] == SavedBytes(per_sample=5.0, per_forward=100.0)
    steps = SavedValues(op="op", inside={2: 10.0, 4: 20.0, 8: 60.0})  # steeper later: below no measurement
    assert saved_by_op([steps])["op"] == SavedBytes(per_sample=10.0, per_forward=0.0)


def test_inputs_of_weights_and_their_gradients_stay_between_the_halves_of_a_backward() -> None:
    """Gradients were in no cost, so that split backwards needed up to a quarter more than predicted."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)), nn.GELU())
    inputs = torch.randn(SAMPLES, 4)
    captured = capture_nodes(model, inputs)
    runs = op_runs(model, captured, gp.Cluster.preset("local:1"), name_inputs(captured.graph.input_layout, inputs))
    found = [values_between_halves(run, SAMPLES) for run in runs]
    kept = {op: each.per_sample for op, each in saved_by_op(found).items()}
    # Linear layers keep inputs of 8 and 16 values, which count for what made them, and gradients of their outputs.
    # What the activations save is freed. Each is in the operator of the layer before it.
    assert kept == {"0": 4 * (8 + 8), "1.0": 4 * (16 + 16), "1.2": 4 * 2}
