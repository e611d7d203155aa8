"""Run with `pytest`: the task trains as in plain PyTorch, and it learns."""

import task

import graphpipe as gp


def test_a_plan_trains_as_plain_pytorch_does() -> None:
    own = task.task()
    cluster = gp.Cluster.preset("local:2")
    graph = gp.capture(own.module, own.example_inputs)
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=16, micro_batch=4)
    inputs, labels = task.samples(16, seed=2)
    result = gp.check(plan, own.module, own.loss_fn, inputs, labels)
    assert result.equal, str(result)


def test_every_epoch_has_the_same_samples_in_another_order() -> None:
    first, second = (list(task.epoch(number, batch_size=64, seed=0)) for number in range(2))
    assert len(first) == len(second) == 4096 // 64
    assert not (first[0][1] == second[0][1]).all()
    assert sum(int(labels.sum()) for _, labels in first) == sum(int(labels.sum()) for _, labels in second)
