"""Inputs without samples in front: they are divided by samples, and get the form that the model takes in its forward.

Qwen2-VL was refused with images: its patches of all images have one dimension, and it attends to one image after the
other.
"""

import pytest
import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture
from graphpipe.model.inputs.input_forms import Form, as_taken, by_samples
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.run import Pipeline

SAMPLES, PATCHES, IMAGE = 4, 6, 49
FORMS: dict[str, Form] = {"patches": "joined", "ends": "cumulative", "order": "permutation", "places": "second"}


class Block(nn.Module):
    """Attends to one image after the other, whose sizes are values. It reads only the dtype of `pairs`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))

    def forward(self, x: Tensor, ends: Tensor, pairs: Tensor) -> Tensor:
        x = x.to(pairs.dtype)
        rows = torch.split(self.inner(x), (ends[1:] - ends[:-1]).tolist())
        return x + torch.cat([each.softmax(0) * each for each in rows])


class ImagesInText(nn.Module):
    """Puts the features of images in place of words, as Qwen2-VL does."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.merge = nn.Linear(5, 8), nn.Linear(16, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.words, self.out = nn.Embedding(50, 8), nn.Linear(8, 5)

    def forward(
        self, words: Tensor, patches: Tensor, ends: Tensor, order: Tensor, places: Tensor, sizes: Tensor
    ) -> Tensor:
        x = self.patch(patches)[order]
        for block in self.blocks:
            x = block(x, ends, patches.reshape(-1, 10))
        merged = self.merge(x.reshape(-1, 16))
        features = torch.cat(torch.split(merged, (sizes.prod(-1) // 2).tolist()))
        mixed = self.words(words).masked_scatter((words == IMAGE)[..., None], features)
        return self.out(mixed * places.sum(0)[..., None])


def taken() -> dict[str, Tensor]:
    """Return a mini-batch as the model takes it."""
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(0, 40, (SAMPLES, 5), generator=draw)
    words[:, 1:4] = IMAGE
    starts = torch.arange(SAMPLES)[:, None] * PATCHES
    return {
        "words": words,
        "patches": torch.randn(SAMPLES * PATCHES, 5, generator=draw, dtype=torch.float64),
        "ends": torch.tensor([0, *(end for start in starts[:, 0].tolist() for end in (start + 2, start + 6))]),
        "order": (torch.tensor([3, 1, 0, 2, 5, 4]) + starts).flatten(),
        "places": torch.rand(3, SAMPLES, 5, generator=draw, dtype=torch.float64),
        "sizes": torch.tensor([[2, 3]] * SAMPLES),
    }


def divided(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a mini-batch with samples in front."""
    given = {name: by_samples(name, batch[name], form, SAMPLES) for name, form in FORMS.items()}
    return {name: given.get(name, each) for name, each in batch.items()}


def loss_fn(output: Tensor, targets: object) -> Tensor:
    del targets
    return (output * torch.arange(5)).square().mean()


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [(4, 1, 2)])
def test_a_tower_over_the_patches_of_all_images_is_cut_between_its_layers(micro_batches: tuple[int, ...]) -> None:
    """A stage with other micro-batches than the one before it needs the rows of each sample apart."""
    torch.manual_seed(0)
    model, batch = ImagesInText().double(), taken()
    expected = loss_fn(model(**batch), None)
    expected.backward()
    wanted = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    graph = capture(model, divided(batch), forms=FORMS, opaque=["blocks.0", "blocks.1"])
    assert graph.order == ("patch", "blocks.0", "blocks.1", "merge", "words", "out")
    edges = {(each.source, each.target): each.bytes_per_sample for each in graph.edges}
    assert edges["blocks.0", "blocks.1"] == PATCHES * 8 * 8
    cluster = Cluster.preset("local:3")
    cuts = (graph.order[:2], graph.order[2:3], graph.order[3:])
    stages = [
        HandStage(ops=ops, devices=(number,), micro_batch=count)
        for number, (ops, count) in enumerate(zip(cuts, micro_batches, strict=True))
    ]
    plan = hand_plan(graph, estimate(graph, cluster), cluster, batch_size=SAMPLES, stages=stages)
    with Pipeline(plan, model, loss_fn) as pipeline:
        assert pipeline.step(divided(batch), None) == pytest.approx(expected.item())
        found = pipeline.gradients()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_divided_and_put_together_again(name: str) -> None:
    batch = taken()
    assert torch.equal(as_taken(divided(batch)[name], FORMS[name]), batch[name])


def test_an_order_may_name_several_rows_at_once() -> None:
    """Kimi K2.5 lists the four patches that it merges: the rows of a sample were taken for those of another one."""
    order = torch.tensor([[2, 0], [1, 3], [6, 7], [5, 4]])
    given = by_samples("order", order, "permutation", 2)
    assert given.tolist() == [[[2, 0], [1, 3]], [[2, 3], [1, 0]]]
    assert torch.equal(as_taken(given, "permutation"), order)


def test_two_batches_one_after_the_other_do_not_count_as_rows_of_samples() -> None:
    """They have two rows for each sample too, but those of a sample are far apart. They are never sent by rows."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            both = self.second(self.first(torch.cat([x, x + 1])))
            return self.third(both.reshape(2, x.shape[0], 4).sum(0))

    assert {len(op.parameters) for op in capture(Twice(), torch.randn(4, 4)).ops} == {4, 2}


@pytest.mark.parametrize(
    ("name", "form", "tensor", "said"),
    [
        ("patches", "joined", torch.zeros(10, 2), "'patches' has 10 rows for 4 samples. Every sample needs the same"),
        ("order", "permutation", torch.tensor([1, 4, 2, 3, 0, 5, 6, 7]), "moves rows between samples"),
        ("places", "second", torch.zeros(4, 3, 2), r"\[4, 3, 2\], but its second dimension must be 4 samples"),
    ],
)
def test_rows_that_cannot_be_divided_by_samples_are_refused(name: str, form: str, tensor: Tensor, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        by_samples(name, tensor, form, 4)
