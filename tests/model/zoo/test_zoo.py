"""The zoo: models of the published sizes without memory, and small variants that learn."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture
from graphpipe.model.zoo import ZOO, registry, zoo
from graphpipe.model.zoo.registry import Entry, zoo_model
from graphpipe.model.zoo.two_tower import contrastive_loss
from graphpipe.model.zoo.zoo_model import ZooModel, assemble, multiple_of
from graphpipe.training.task.user_function import find_model

# By hand, from the shapes. A transformer layer of hidden h and feed-forward f has two norms (2h each), the
# attention's projections (h -> 3h -> h) and the feed-forward's (h -> f -> h), all with biases.
LAYER = 4 * 1024 + (4 * 1024**2 + 4 * 1024) + (2 * 1024 * 4096 + 4096 + 1024)
SQUARE = 4096**2 + 4096
GPT_LAYER = 4 * 768 + (4 * 768**2 + 4 * 768) + (2 * 768 * 3072 + 3072 + 768)


@pytest.fixture(autouse=True)
def one_thread():
    """On a busy machine, threads that share small tensors only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def count_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mmt", 4 * 8 * LAYER + 4096 * 16 + 16),
        ("case-study", 2 * 4 * (2 * 1024 + 4 * (1024**2 + 1024) + 2 * (1024**2 + 1024)) + 2048 * 16 + 16),
        ("candle-uno", 7 * 4 * SQUARE + (7 * 4096 + 1) * 4096 + SQUARE + 4097),
        ("dlrm", 7 * 4 * SQUARE + 7 * 64_000_000 + (7 * 4096 + 7 * 64 + 1) * 4096 + 3 * SQUARE + 4097),
        ("gpt", 50257 * 768 + 1024 * 768 + 12 * GPT_LAYER + 2 * 768 + 50257 * 769),
        # Every layer and the head have a query and a norm of the depth. The embedding has tokens and positions.
        (
            "attention-residuals",
            51281 * 1024 + 16 * LAYER + 33 * 2 * 1024 + 2 * 1024 + 50257 * 1025,
        ),
        ("unet", 31_030_658),  # as counted by others for 1 channel, 2 classes and biases
        ("densenet", 7_978_856),  # as published for DenseNet-121; a group norm has as many as a batch norm
    ],
)
def test_the_papers_shape_has_the_parameters_counted_by_hand_and_no_memory(name, parameters):
    module, inputs = zoo(name)
    assert count_parameters(module) == parameters
    assert all(tensor.is_meta for tensor in [*module.parameters(), *inputs.values()])


@pytest.mark.parametrize("name", list(ZOO))
def test_the_papers_shape_computes_its_output_on_the_meta_device(name):
    model = zoo_model(name)
    output = model.module(**model.example_inputs)
    expected = {
        "mmt": 16,
        "case-study": 16,
        "dlrm": 1,
        "candle-uno": 1,
        "gpt": 1024,
        "two-tower": 2,
        "attention-residuals": 1024,
        "unet": 2,
        "densenet": 1000,
        "vision-language": 256,
    }
    assert output.shape[:2] == (2, expected[name])


@pytest.mark.parametrize("name", list(ZOO))
def test_the_small_model_learns_its_task(name):
    torch.manual_seed(0)
    model = zoo_model(f"{name}-small")
    generator = torch.Generator().manual_seed(7)
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(30):
        inputs, targets = model.batch(generator, 16)
        optimizer.zero_grad()
        loss = model.loss_fn(model.module(**inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in model.module.parameters())
    assert sum(losses[-5:]) / 5 < 0.7 * losses[0], losses


@pytest.mark.parametrize("name", list(ZOO))
def test_the_loss_is_the_mean_over_samples_so_that_micro_batches_add_up(name):
    model = zoo_model(f"{name}-small")
    if name == "two-tower":
        assert model.module.whole_batch == ("head",)
        return
    inputs, targets = model.batch(torch.Generator().manual_seed(0), 8)
    with torch.no_grad():
        whole = model.loss_fn(model.module(**inputs), targets)
        halves = [
            model.loss_fn(model.module(**{key: each[rows] for key, each in inputs.items()}), targets[rows])
            for rows in (slice(0, 4), slice(4, 8))
        ]
    torch.testing.assert_close((halves[0] + halves[1]) / 2, whole)


def test_equal_generators_give_equal_batches():
    first, second = (zoo_model("dlrm-small").batch(torch.Generator().manual_seed(3), 4) for _ in range(2))
    assert all(torch.equal(first[0][name], second[0][name]) for name in first[0])
    assert torch.equal(first[1], second[1])


def test_options_change_the_shape():
    module, inputs = zoo("mmt", branches=2, layers=3, hidden=512)
    assert list(inputs) == ["modality0", "modality1"]
    assert inputs["modality0"].shape == (2, 256, 512)
    assert [name for name, _ in module.named_children()] == ["branch0", "branch1", "concat", "head"]
    assert len([*module.get_submodule("branch0").children()]) == 3


def test_a_colon_and_a_device_choose_the_variant():
    colon, dash = zoo("gpt:small")[0], zoo("gpt-small")[0]
    assert {name: each.shape for name, each in colon.named_parameters()} == {
        name: each.shape for name, each in dash.named_parameters()
    }
    assert next(colon.parameters()).device.type == "cpu"
    assert next(zoo("gpt-small", device="meta")[0].parameters()).is_meta


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mmtt", {}, "Did you mean 'mmt'"),
        ("two-towers-small", {}, "Did you mean 'two-tower-small'"),
        ("mmt", {"branch": 2}, "Did you mean 'branches'"),
        ("mmt", {"layers": 0}, "positive integer"),
        ("mmt", {"layers": 2.5}, "positive integer"),
        ("mmt", {"hidden": 1000}, "hidden = 1000 does not divide by heads = 16"),
        ("two-tower", {"patch": 30}, "pixels = 224 does not divide by patch = 30"),
    ],
)
def test_unknown_names_and_bad_sizes_are_refused_with_a_remedy(name, options, message):
    with pytest.raises(InvalidInput, match=message):
        zoo(name, **options)


def test_the_contrastive_loss_by_hand():
    # Labels 5, 5, 6: targets 1/2 1/2 0, 1/2 1/2 0, 0 0 1. Uniform logits give probabilities of 1/3.
    labels = torch.tensor([5, 5, 6])
    divergence = (2 * torch.log(torch.tensor(3 / 2)) + torch.log(torch.tensor(3.0))) / 3
    torch.testing.assert_close(contrastive_loss(torch.zeros(3, 3), labels), divergence)
    best = torch.tensor([[0.0, 0.0, -90.0], [0.0, 0.0, -90.0], [-90.0, -90.0, 0.0]])
    torch.testing.assert_close(contrastive_loss(best, labels), torch.tensor(0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewShape:
    width: int = multiple_of("groups", 12)
    groups: int = 3


def build_new(shape: NewShape, device: str) -> ZooModel:
    def task(generator: torch.Generator, samples: int):
        x = torch.randn(samples, shape.width, generator=generator)
        return {"x": x}, x

    with torch.device(device):
        module = nn.Sequential(nn.Linear(shape.width, shape.width), nn.ReLU(), nn.Linear(shape.width, shape.width))
    return assemble(module, nn.functional.mse_loss, task, device)


def test_a_new_model_needs_only_its_file_and_an_entry(monkeypatch):
    entries: Mapping[str, Entry] = {**ZOO, "new": Entry(build_new, NewShape(), NewShape(width=6))}
    monkeypatch.setattr(registry, "ZOO", entries)
    model = find_model("new-small")
    module, inputs = model.module, model.example_inputs
    graph = capture(module, inputs)
    assert [op.name for op in graph.ops] == ["0", "2"]
    assert graph["0"].output_bytes_per_sample == 4 * 6
    assert next(zoo("new", width=24)[0].parameters()).shape == (24, 24)
    with pytest.raises(InvalidInput, match="width = 7 does not divide by groups = 3"):
        zoo("new", width=7)
