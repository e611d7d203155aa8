"""The loss cut out of a model equals the model's own, for a mini-batch and for the sum of its parts."""

import pickle
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Origin
from graphpipe.model.capture.capture import capture
from graphpipe.model.inputs import describe, name_inputs, read_layout
from graphpipe.model.own_loss.own_loss import OwnLoss, own_loss

BATCH = 6
PARTS = (slice(0, 1), slice(1, 4), slice(4, 6))


class Scores(nn.Module):
    """Scores words, and returns a loss of some kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.score = nn.Linear(4, 5)
        self.kind = kind

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.score(x)
        return {"logits": logits} if labels is None else {"loss": self.loss(logits, labels), "logits": logits}

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        entropy = nn.functional.cross_entropy
        match self.kind:
            case "next":
                return entropy(logits[:, :-1].reshape(-1, 5), labels[:, 1:].reshape(-1))
            case "two":
                first = entropy(logits[:, 0], labels[:, 1].clamp(0), ignore_index=1)
                return 0.5 * entropy(logits.reshape(-1, 5), labels.reshape(-1)) + first / 3
            case "smooth":
                return entropy(logits.transpose(1, 2), labels, label_smoothing=0.1)
            case "weights":
                return entropy(logits.transpose(1, 2), labels, weight=self.score.bias.detach().exp())
            case "sum":
                return entropy(logits.transpose(1, 2), labels, reduction="sum")
            case "by hand":
                return (logits - labels.unsqueeze(-1)).square().mean()
            case "product":
                return entropy(logits[:, 0], labels[:, 0]) * entropy(logits[:, 1], labels[:, 1])
            case "but one":
                return entropy(logits[1:].transpose(1, 2), labels[1:])
            case "all but":
                return entropy(logits[0:, 1:].transpose(1, 2), labels[0:, 1:]) * 2 - 1
            case "decay":
                return entropy(logits.transpose(1, 2), labels) + self.score.weight.square().mean()
            case _:
                return nn.functional.mse_loss(logits, nn.functional.one_hot(labels.clamp(0), 5).float())


def batch() -> dict[str, Tensor]:
    """Return a mini-batch whose samples have different numbers of counting labels; the first sample has zero."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (BATCH, 4), generator=generator)
    labels[0] = labels[2, 1:] = labels[4, 3:] = -100
    return {"x": torch.randn(BATCH, 4, 4, generator=generator), "labels": labels}


def cut_out(module: nn.Module, given: dict[str, Tensor], labels: list[str], **arguments: Any) -> OwnLoss:
    named = name_inputs(read_layout(module, given), given)
    return own_loss(module, describe(named), labels, Origin(method="export", arguments=tuple(arguments.items())))[0]


def assert_exact(module: nn.Module, given: dict[str, Tensor], labels: list[str], **arguments: Any) -> None:
    module.eval()
    loss = cut_out(module, given, labels, **arguments)
    output = module(**given, **arguments)
    assert all(name in output for name in loss.reads)
    leaves = [output[name] for name in loss.reads]
    expected = torch.autograd.grad(output["loss"], leaves, retain_graph=True)
    targets = loss.targets({name: given[name] for name in labels})
    assert loss(output, targets).item() == pytest.approx(output["loss"].item(), rel=1e-6)
    copy = pickle.loads(pickle.dumps(loss))  # another process does not have to trace the model again
    assert torch.equal(copy(output, copy.targets({name: given[name] for name in labels})), loss(output, targets))
    parts = [
        loss({name: output[name][rows] for name in loss.reads}, {name: each[rows] for name, each in targets.items()})
        * ((rows.stop - rows.start) / BATCH)
        for rows in PARTS
    ]
    total = torch.stack(parts).sum()
    assert total.item() == pytest.approx(output["loss"].item(), rel=1e-6)
    for found, gradient in zip(torch.autograd.grad(total, leaves), expected, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["next", "two", "smooth", "all but", "squares"])
def test_parts_add_up_to_the_models_own_loss_and_gradient(kind: str) -> None:
    assert_exact(Scores(kind), batch(), ["labels"])


class Listed(Scores):
    """Also returns a list with an entry for each sample, as SmolVLM does with its images."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        sizes = torch.ones_like(x[:, 0, 0], dtype=torch.long)
        return {**super().forward(x, labels), "samples": x.split(sizes.tolist())}


def test_a_list_of_samples_that_the_loss_does_not_read_is_left_out() -> None:
    """SmolVLM was refused with images: "it returns a list with an entry for each sample"."""
    assert_exact(Listed("next"), batch(), ["labels"])
    inputs = {"x": batch()["x"]}
    assert capture(Listed("next"), inputs, outputs=["logits"]).order == ("score",)
    with pytest.raises(InvalidInput, match="returns a list with an entry for each sample"):
        capture(Listed("next"), inputs, outputs=["logits", "samples"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("weights", "Scores weighs the classes in its loss"),
        ("sum", "with cross_entropy_loss that is not a mean"),
        ("by hand", "which is not known to keep a mean over samples"),
        ("product", "Scores does mul with the means in its loss"),
        ("but one", "Scores leaves samples out of its loss"),
        ("decay", "Scores reads 'score.weight' in its loss"),
    ],
)
def test_a_loss_that_parts_may_not_add_up_to_is_refused(kind: str, message: str) -> None:
    with pytest.raises(
        InvalidInput, match=f"{message}.* Leave the labels out of the example, and write a loss function"
    ):
        cut_out(Scores(kind), batch(), ["labels"])


def test_a_model_without_a_loss_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Linear does not return a loss for these labels"):
        cut_out(nn.Linear(4, 2), {"input": torch.zeros(2, 4)}, ["labels"])


@pytest.mark.parametrize("kind", ["MaskedLM", "QuestionAnswering", "SequenceClassification", "CausalLM"])
def test_losses_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    config.is_decoder, config.num_labels = kind == "CausalLM", 1 if kind == "SequenceClassification" else 2
    words = torch.randint(0, 20, (BATCH, 5), generator=torch.Generator().manual_seed(0))
    labels = {"labels": words.masked_fill(torch.arange(30).view(BATCH, 5) % 7 < 3, -100)}
    if kind == "QuestionAnswering":
        labels = {
            "start_positions": words[:, 0] % 7,
            "end_positions": words[:, 1] % 7,
        }  # 5 and more: outside
    elif kind == "SequenceClassification":
        labels = {"labels": words[:, 0].float()}
    model = getattr(transformers, f"BertFor{kind}" if kind != "CausalLM" else "BertLMHeadModel")(config)
    arguments = {"use_cache": False} if kind == "CausalLM" else {}
    assert_exact(model, {"input_ids": words, **labels}, list(labels), **arguments)


def test_transformers_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphpipe.model.own_loss.from_transformers import from_transformers

    monkeypatch.setitem(sys.modules, "transformers.modeling_layers", None)
    with pytest.raises(InvalidInput, match=r"transformers is not installed. .*graphpipe-torch\[transformers\]"):
        from_transformers(nn.Linear(2, 2), {"input": torch.zeros(2, 2)})
