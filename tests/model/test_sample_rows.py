"""Loops over samples: joined again at once, as in LLaVA, or refused. They once fixed the number of samples."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture
from graphpipe.model.sample_rows import with_mode
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.run import Pipeline


class Listed(nn.Module):
    """Computes something from single samples, between two linear layers."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 4), nn.Linear(4, 2), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


def test_a_list_of_all_samples_that_is_joined_again_is_followed() -> None:
    graph = capture(Listed(lambda x: torch.cat(list(x), dim=0).reshape(x.shape)), torch.randn(2, 3, 4))
    assert graph.order == ("first", "last")


class WithoutPadding(nn.Module):
    """Leaves out images of zeros, and lists the features of each sample, as Idefics3 does."""

    def __init__(self, choose: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.choose = nn.Linear(4, 4), nn.Linear(4, 2), choose

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(0, 1)
        chosen = self.choose(flat)
        found = self.first(flat[chosen])
        parts = found.split(chosen.view(images.shape[0], -1).sum(1).tolist())
        return self.last(torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])).reshape(images.shape[0], -1)


def any_but_zeros(flat: Tensor) -> Tensor:
    return (flat != 0).any(-1).any(-1)


def fewer_zeros_than_elements(flat: Tensor) -> Tensor:
    return (flat == 0.0).sum(dim=(-1, -2)) != flat.shape[1:].numel()


@pytest.mark.parametrize("choose", [any_but_zeros, fewer_zeros_than_elements])
def test_images_that_only_pad_a_sample_are_refused_when_they_come(choose: Callable[[Tensor], Tensor]) -> None:
    """Idefics3 was refused: how many images it has depends on values. Without padding it has all of them."""
    images, model = torch.randn(4, 2, 3, 4), WithoutPadding(choose)
    graph = capture(model, images)
    assert graph.order == ("first", "last")
    plan = hand_plan(
        graph,
        estimate(graph, cluster := Cluster.preset("local:2")),
        cluster,
        batch_size=4,
        stages=[HandStage(ops=(name,), devices=(at,), micro_batch=2) for at, name in enumerate(graph.order)],
    )
    with Pipeline(plan, model, lambda output, _: output.square().mean()) as pipeline:
        assert pipeline.step(images, None) == pytest.approx(model(images).square().mean().item())
        images[3, 1] = 0
        with pytest.raises(InvalidInput, match=r"1 of 4 images are only padding.*the same number of images"):
            pipeline.step(images, None)


class SomeImages(nn.Module):
    """Adds the features of images to those of texts, of which only some have an image."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.text, self.head = nn.Linear(4, 8), nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, images: Tensor, given: Tensor, text: Tensor) -> Tensor:
        found = torch.zeros(images.shape[0], 3, 8)
        found[given] = self.tower(images[given])
        return self.head(found.sum(1) + self.text(text))


def test_images_that_are_missing_are_not_taken_for_padding() -> None:
    """Such a model was captured and planned, and failed in its first step: "1 of 4 images are only padding"."""
    inputs = {"images": torch.randn(4, 3, 4), "given": torch.ones(4, dtype=torch.bool), "text": torch.randn(4, 5)}
    with pytest.raises(InvalidInput, match=r"passes tower a size that depends on the values.*Move that part into"):
        capture(SomeImages(), inputs)


@pytest.mark.parametrize(
    "between",
    [
        lambda x: torch.cat(list(x)[:2], dim=0).reshape(-1, 3, 4),
        lambda x: torch.cat([*reversed(list(x))], dim=0).reshape(x.shape),
        lambda x: torch.cat([row * 2 for row in x], dim=0).reshape(x.shape),
        lambda x: torch.stack(list(x)),
        lambda x: x + next(iter(x)),
        lambda x: x + sum(F.interpolate(x, size=(row,)) for row in x.sum((1, 2)).long()),  # as in ViLT
    ],
)
def test_what_a_loop_does_with_single_samples_is_refused(between: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(InvalidInput, match="loops over the samples of a mini-batch, whose number is not known"):
        capture(Listed(between), torch.randn(2, 3, 4))


def test_a_forward_that_fixes_the_number_of_samples_is_refused() -> None:
    with pytest.raises(InvalidInput, match="or for another number of samples"):
        capture(Listed(lambda x: x / len(x)), torch.randn(2, 3, 4))


def test_a_forward_that_returns_a_list_of_samples_is_refused_in_words() -> None:
    """SmolVLM was refused because it returned a `OnePart`, which is a name of ours."""

    class Lists(Listed):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return self.first(x).split(x.sum((1, 2)).long().tolist())

    with pytest.raises(InvalidInput, match="returns a list with an entry for each sample"):
        capture(Lists(lambda x: x), torch.randn(2, 3, 4))


class Sizes(nn.Module):
    """Adds to each sample as many rows of a table as its size says, one sample after the other, or a few at once."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.table, self.step = nn.Linear(4, 3, bias=False), step

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        found = torch.zeros_like(x)
        for start in range(0, len(x), self.step):
            part = slice(start, start + self.step)
            found[part] = torch.where(torch.arange(3)[:, None] < sizes[part, None, None], self.table.weight, 0)
        return x + found


class Sized(nn.Module):
    """A model around such a submodule, as SigLIP 2 is around its positions."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.first, self.sizes, self.last = nn.Linear(4, 4), Sizes(step), nn.Linear(4, 2)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        return self.last(self.sizes(self.first(x), sizes))


@pytest.mark.slow
def test_a_submodule_that_loops_over_samples_stays_whole() -> None:
    """It was refused for running more operators for more samples."""
    torch.manual_seed(0)
    model, inputs = Sized(1), {"x": torch.randn(4, 3, 4), "sizes": torch.tensor([3, 1, 2, 0])}
    expected = model(**inputs).square().mean()
    expected.backward()
    wanted = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    graph = capture(model, inputs)
    assert graph.order == ("first", "last")
    cluster = Cluster.preset("local:2")
    stages = [HandStage(ops=(op,), devices=(number,), micro_batch=2) for number, op in enumerate(graph.order)]
    plan = hand_plan(graph, estimate(graph, cluster), cluster, batch_size=4, stages=stages)
    with Pipeline(plan, model, lambda output, _: output.square().mean()) as pipeline:
        assert pipeline.step(inputs, None) == pytest.approx(expected.item())
        for name, gradient in pipeline.gradients().items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-5, atol=1e-7, msg=name)


def test_a_submodule_that_takes_a_few_samples_at_once_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'sizes' runs other operators for 8 samples than for 63"):
        capture(Sized(5), {"x": torch.randn(4, 3, 4), "sizes": torch.ones(4, dtype=torch.long)})


class Codes(nn.Module):
    """Distances to the rows of a codebook, as in Mimi. Torch asks whether there are more than 25 rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.first, self.book, self.last = nn.Linear(4, 4), nn.Linear(4, rows), nn.Linear(rows, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cdist(self.first(x).flatten(0, 1), self.book.weight).unflatten(0, (-1, 3)))


@pytest.mark.parametrize("rows", [6, 26])
def test_distances_to_a_codebook_do_not_ask_for_the_number_of_samples(rows: int) -> None:
    assert capture(Codes(rows), torch.randn(4, 3, 4)).order[-1] == "last"


def test_the_named_mode_is_the_one_that_torch_takes() -> None:
    x, book = torch.randn(3, 4), torch.randn(26, 4)
    for few in (book, book[:25]):
        assert torch.equal(torch.cdist(x, few), torch.cdist(x, few, **with_mode((x, few), {})))
    assert with_mode((x, book), {"compute_mode": "donot_use_mm_for_euclid_dist"}) == {
        "compute_mode": "donot_use_mm_for_euclid_dist"
    }
