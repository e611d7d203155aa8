"""The digits example: real data, the loss computed by hand, and a model that recognises held-out scans."""

import copy
import importlib
from pathlib import Path

import pytest
import torch

import graphpipe as gp

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def digits(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("digits")


def read(digits, tokens):
    return "".join(digits.LETTERS[number] for number in tokens).rstrip()


def test_the_parts_are_fixed_and_contain_every_scan_once(digits):
    parts = {part: digits.data(part) for part in ("train", "held-out")}
    assert [len(labels) for _, labels in parts.values()] == [1437, 360]
    pixels = torch.cat([inputs["pixels"] for inputs, _ in parts.values()])
    assert pixels.shape == (1797, 1, 8, 8)
    assert (pixels.min(), pixels.max()) == (-1.0, 1.0)
    overlap = {tuple(scan) for scan in parts["train"][0]["pixels"].flatten(1).tolist()} & {
        tuple(scan) for scan in parts["held-out"][0]["pixels"].flatten(1).tolist()
    }
    assert not overlap
    again, _ = digits.data("train")
    assert all(torch.equal(again[name], parts["train"][0][name]) for name in again)


def test_every_caption_names_its_digit(digits):
    inputs, labels = digits.data("train")
    for tokens, label in zip(inputs["tokens"][:50], labels[:50], strict=True):
        assert digits.NAMES[label] in read(digits, tokens)
    assert len({read(digits, tokens) for tokens in inputs["tokens"]}) == len(digits.TEMPLATES) * 10


def test_the_first_ten_held_out_captions_are_the_digits_names(digits):
    inputs, labels = digits.data("held-out")
    assert tuple(read(digits, tokens) for tokens in inputs["tokens"][:10]) == digits.NAMES
    perfect = torch.zeros(len(labels), len(labels))
    perfect[torch.arange(len(labels)), labels] = 1.0
    assert digits.accuracy(perfect, labels) == 1.0
    perfect[:36] = perfect[:36].roll(1, dims=1)
    assert digits.accuracy(perfect, labels) == pytest.approx(0.9)


def test_a_training_has_complete_mini_batches_of_different_scans(digits):
    batches = digits.batches(epochs=2, batch_size=128)
    assert len(batches) == 22
    assert all(len(labels) == len(inputs["pixels"]) == 128 for inputs, labels in batches)
    assert not torch.equal(batches[0][1], batches[11][1])
    again = digits.batches(epochs=2, batch_size=128)
    assert all(torch.equal(first[1], second[1]) for first, second in zip(batches, again, strict=True))


def test_the_loss_is_zero_at_best_and_does_not_push_equal_labels_apart(digits):
    labels = torch.tensor([3, 3, 8])
    alike = torch.tensor([[0.0, 0.0, -90.0], [0.0, 0.0, -90.0], [-90.0, -90.0, 0.0]], requires_grad=True)
    loss = digits.loss_fn(alike, labels)
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(0.0))
    torch.testing.assert_close(alike.grad, torch.zeros(3, 3))
    # Uniform over three: two rows whose targets are 1/2, 1/2 and one whose target is 1, both ways alike.
    uniform = (2 * torch.log(torch.tensor(1.5)) + torch.log(torch.tensor(3.0))) / 3
    torch.testing.assert_close(digits.loss_fn(torch.zeros(3, 3), labels), uniform)


@pytest.mark.slow
def test_a_small_model_learns_to_recognise_held_out_scans(digits):
    torch.manual_seed(0)
    model, example_inputs = digits.model(image_layers=1, text_layers=1)
    assert model(**example_inputs).shape == (2, 2)
    optimizer = digits.optimizer(model.parameters())
    for inputs, labels in digits.batches(epochs=5):
        optimizer.zero_grad()
        digits.loss_fn(model(**inputs), labels).backward()
        optimizer.step()
    inputs, labels = digits.data("held-out")
    model.eval()
    with torch.no_grad():
        assert digits.accuracy(model(**inputs), labels) > 0.9


def test_the_script_trains_in_one_process_and_reports_the_accuracy(digits, monkeypatch, capsys):
    script = importlib.import_module("two_towers")
    small = digits.model(image_layers=1, text_layers=1)
    monkeypatch.setattr(digits, "model", lambda: small)
    monkeypatch.setattr(script, "EPOCHS", 1)
    before = {name: each.clone() for name, each in small[0].named_parameters()}
    script.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("s0 on (0,")
    assert printed[-2].startswith("step 11: loss ")
    assert printed[-1].startswith("held-out accuracy ")
    assert not any(torch.equal(each, before[name]) for name, each in small[0].named_parameters())


def plain_losses(digits, model, batches):
    optimizer = digits.optimizer(model.parameters())
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = digits.loss_fn(model(**inputs), labels)
        loss.backward()
        optimizer.step()
        yield loss.item()


def cut_into_four(model, example_inputs):
    graph = gp.capture(model, example_inputs)
    cluster = gp.Cluster.preset("local:4")
    image = [op.name for op in graph.ops if op.name.startswith("image")]
    stages = [
        gp.HandStage(name="scans", ops=tuple(image[:2]), devices=(0,), micro_batch=16),
        gp.HandStage(name="shapes", ops=tuple(image[2:]), devices=(1,), micro_batch=16),
        gp.HandStage(name="captions", ops=("text*",), devices=(2, 3), micro_batch=32),
        gp.HandStage(name="head", ops=("head",), devices=(1,), micro_batch=64),
    ]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=64, stages=stages)


def test_the_pipelines_loss_curve_is_that_of_plain_training(digits):
    batches = digits.batches(1, batch_size=64)[:8]
    torch.manual_seed(0)
    model, example_inputs = digits.model(image_layers=2, text_layers=2)
    plain = list(plain_losses(digits, copy.deepcopy(model), batches))
    with gp.Pipeline(cut_into_four(model, example_inputs), model, digits.loss_fn, digits.optimizer) as pipeline:
        pipelined = [pipeline.step(inputs, labels) for inputs, labels in batches]
    assert plain[-1] < plain[0]
    assert pipelined == pytest.approx(plain, rel=1e-4)
