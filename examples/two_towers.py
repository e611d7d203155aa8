"""Trains the image-text model of digits.py as a graph pipeline, with one process per device:

    torchrun --nproc-per-node 4 examples/two_towers.py

Without torchrun, one process computes all four devices.
"""

import os

import digits
import torch

import graphpipe as gp

BATCH, EPOCHS = 128, 12


def main() -> None:
    torch.manual_seed(0)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 4))
    model, example_inputs = digits.model()

    # Every rank makes the same plan, because the costs are not measured and the search is deterministic.
    graph = gp.capture(model, example_inputs)
    cluster = gp.Cluster.preset(f"local:{ranks}")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=BATCH)
    if rank == 0:
        for stage in plan.stages:
            print(
                f"{stage.name} on {stage.devices}: {stage.ops[0]} to {stage.ops[-1]}, micro-batch {stage.micro_batch}"
            )

    with gp.Pipeline(plan, model, digits.loss_fn, digits.optimizer) as pipeline:
        for step, (inputs, labels) in enumerate(digits.batches(EPOCHS, BATCH), start=1):
            loss = pipeline.step(inputs, labels)
            if rank == 0 and step % 11 == 0:
                print(f"step {step}: loss {loss:.3f}")
        inputs, labels = digits.data("held-out")
        _, similarities = pipeline.evaluate(inputs)
        if rank == 0:
            print(f"held-out accuracy {digits.accuracy(similarities, labels):.1%}")


if __name__ == "__main__":
    main()
