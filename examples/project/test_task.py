"""Run with `pytest`: a plan trains the model as plain PyTorch does."""

import task
from torch.utils.data import default_collate

import graphpipe as gp


def test_a_plan_trains_as_plain_pytorch_does() -> None:
    own = task.task()
    cluster = gp.Cluster.preset("local:2")
    graph = gp.capture(own.module, own.example_inputs)
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=16, micro_batch=4)
    inputs, labels = default_collate([own.dataset[index] for index in range(16)])
    result = gp.check(plan, own.module, own.loss_fn, inputs, labels)
    assert result.equal, str(result)


def test_samples_are_what_the_model_takes() -> None:
    own = task.task()
    for data in (own.dataset, own.held_out):
        inputs, label = data[0]
        assert {name: each.shape for name, each in inputs.items()} == {
            name: each.shape[1:] for name, each in own.example_inputs.items()
        }
        assert int(label) in (0, 1)
