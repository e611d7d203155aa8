"""The model's output keeps the dtypes with which it was captured."""

from pathlib import Path

import pytest
import torch
from run_plans import plan_for
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Origin, Precision
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.capture_file.capture_file import load_capture, save_capture
from graphpipe.model.dag_module import DagModule
from graphpipe.run import Pipeline, PipelineOptions


class Head(nn.Module):
    """Returns scores of another type once it is told to, and how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.wrong = False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.linear(x)
        return scores.double() if self.wrong else scores, x.argmax(1)


def loss_fn(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return (output[0] - targets).square().mean()


@pytest.mark.parametrize(("precision", "known"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_an_output_of_another_dtype_is_refused(precision: Precision, known: str, tmp_path: Path) -> None:
    """The loss function accepted it: of another stage it would have been refused as a message."""
    head, x = Head(), torch.randn(4, 4)
    model = DagModule({"stem": nn.Linear(4, 4), "head": head}, inputs={"stem": ["x"], "head": ["stem"]})
    found = capture_nodes(model, {"x": x}, Origin(method="auto", precision=precision))
    assert save_capture(found, tmp_path / "capture.json")
    captured = load_capture(tmp_path / "capture.json", found.graph)  # as the ranks of a training read it
    plan = plan_for(found.graph, [(["stem"], [0], 2), (["head"], [0], 2)], 4)
    options = PipelineOptions(precision=precision, captured=captured)
    with Pipeline(plan, model, loss_fn, torch.optim.SGD, options=options) as pipeline:
        pipeline.step({"x": x}, torch.zeros(4, 1))
        before = [each.clone() for each in model.parameters()]
        head.wrong = True
        with pytest.raises(InvalidInput) as caught:
            pipeline.step({"x": x}, torch.zeros(4, 1))
    name = plan.stages[-1].name
    message = f"stage '{name}': tensor 1 of the model's output is float64, it was captured as {known}. "
    assert str(caught.value) == f"{message}Return the same dtype for every mini-batch: .to(torch.{known})."
    assert all(map(torch.equal, model.parameters(), before))
