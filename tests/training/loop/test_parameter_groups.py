"""Parameter groups by patterns: every parameter is in exactly one, and a pattern that matches nothing is refused."""

from typing import Any

import pytest
import torch
from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.training.config.optimizer_settings import GroupSettings, OptimizerSettings
from graphpipe.training.config.optimizers import build_optimizer
from graphpipe.training.config.parameter_groups import ParameterGroups


class RootMeanNorm(nn.RMSNorm):
    """A norm of the user's own."""


class Model(nn.Module):
    """Two blocks with norms, a tied head, and a frozen embedding of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(10, 4), nn.Embedding(6, 4).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)) for _ in range(2))
        self.norm, self.head = RootMeanNorm(4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


def groups(*given: GroupSettings, **more: Any) -> ParameterGroups:
    return ParameterGroups.of(OptimizerSettings(weight_decay=0.1, groups=given, **more), Model())


NORMS = GroupSettings(match=("*.bias",), modules=("*Norm*",), weight_decay=0.0)
FIRST = GroupSettings(match=("blocks.0.*",), lr_factor=0.1)


def test_norms_and_biases_have_no_decay_and_a_layer_its_own_rate() -> None:
    found = groups(NORMS, FIRST, lr=0.02)
    options = {
        (round(values["lr"], 9), values["weight_decay"]): names
        for numbers, names in found.members().items()
        for values in [found.settings.of_groups(numbers)]
    }
    assert options == {
        (0.02, 0.1): ["embed.weight", "blocks.1.1.weight"],
        (0.02, 0.0): ["blocks.1.0.weight", "blocks.1.0.bias", "blocks.1.1.bias", "norm.weight"],
        (0.002, 0.0): ["blocks.0.0.weight", "blocks.0.0.bias", "blocks.0.1.bias"],
        (0.002, 0.1): ["blocks.0.1.weight"],
    }
    trained = [name for name, each in Model().named_parameters() if each.requires_grad]
    assert sorted(name for names in options.values() for name in names) == sorted(trained)


def test_a_rank_builds_its_share_and_slices_have_the_options_of_their_parameter() -> None:
    found = groups(NORMS, FIRST, lr=0.02, arguments={"betas": [0.8, 0.9], "foreach": True})
    share = [(name, nn.Parameter(torch.zeros(2))) for name in ("norm.weight", "blocks.0.1.weight[0:2]")]
    built = found.build(share)
    assert [(group["lr"], group["weight_decay"], group["betas"]) for group in built.param_groups] == [
        (0.02, 0.0, (0.8, 0.9)),
        (pytest.approx(0.002), 0.1, (0.8, 0.9)),
    ]
    assert found.options_of("blocks.0.1.weight[0:2]")["lr"] == pytest.approx(0.002)
    # Of a tied parameter, every name counts, whichever a stage knows it by.
    by_other_name = groups(GroupSettings(match=("head.*",), lr=0.5))
    assert by_other_name.options_of("embed.weight")["lr"] == by_other_name.options_of("head.weight")["lr"] == 0.5
    # The last group that sets an option decides.
    twice = groups(GroupSettings(match=("*",), lr=0.3, weight_decay=0.4), GroupSettings(match=("norm.*",), lr=0.7))
    assert {key: twice.options_of("norm.weight")[key] for key in ("lr", "weight_decay")} == {
        "lr": 0.7,
        "weight_decay": 0.4,
    }


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"match": ("block.*",)}, r"'block\.\*' matches no parameter\. The model has 'blocks\.[01]\.[^']*'"),
        ({"match": ("LayerNorm",)}, r"'LayerNorm' matches no parameter\. Name it in `modules`\."),
        ({"modules": ("LayerNrm",)}, r"'LayerNrm' matches no class of a submodule\. The model has 'LayerNorm', "),
        ({"match": ("positions.*",)}, "matches only parameters that are not trained"),
    ],
)
def test_a_pattern_without_a_trained_parameter_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        groups(GroupSettings(**given, lr=0.1))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "a group matches nothing"),
        ({"match": ("*",), "lr": 0.1, "lr_factor": 0.5}, "'\\*' has lr and lr_factor"),
        ({"match": ("*",), "lr": -0.1}, "lr of '\\*': is -0.1, must be finite, not negative"),
        ({"match": ("*",), "arguments": {"beta": 3}}, "AdamW has no 'beta' of its own .* Did you mean 'betas'"),
        ({"match": ("*",), "arguments": {"betas": [3, 4]}}, "AdamW refuses its arguments: ValueError: Invalid beta"),
        ({"match": ("*",), "momentum": 0.9}, "AdamW has no 'momentum' of its own for a group"),
        ({"match": ("*",), "arguments": {"lr": 0.9}}, "'\\*' has lr in arguments. Set its lr"),
    ],
)
def test_options_that_a_group_cannot_have_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        OptimizerSettings(groups=(GroupSettings(**given),))


def test_an_optimizer_that_refuses_a_parameter_is_named_before_the_training() -> None:
    """Muon ended with a request to report a bug, after the model was profiled."""
    with pytest.raises(InvalidInput, match=r"'muon' refuses a parameter, of 'embed\.weight' and .* only supports 2D"):
        groups(name="Muon").check(Model())


def test_a_group_can_have_another_class() -> None:
    found = groups(NORMS, GroupSettings(match=("blocks.*.1.weight",), name="Muon", momentum=0.8), lr=0.02)
    found.check(Model())
    named = [(name, each) for name, each in Model().named_parameters() if each.requires_grad]
    muon, adamw = (found.build([each for each in named if found.kind(each[0]) == kind]) for kind in ("muon", "adamw"))
    assert (type(muon), type(adamw)) == (torch.optim.Muon, torch.optim.AdamW)
    (group,) = muon.param_groups
    assert (len(group["params"]), group["lr"], group["momentum"], group["weight_decay"]) == (2, 0.02, 0.8, 0.1)
    assert [len(each["params"]) for each in adamw.param_groups] == [1, 7]
    # Without names, as the profiler has parameters, the first class that takes all of them is built.
    assert isinstance(
        build_optimizer(OptimizerSettings(name="Muon", groups=(ADAMW,)), [each for _, each in named]), torch.optim.AdamW
    )


ADAMW = GroupSettings(modules=("*Norm*", "Embedding"), match=("*.bias",), name="AdamW")


def test_an_option_that_the_class_of_a_parameter_has_not_is_refused() -> None:
    betas = GroupSettings(match=("blocks.0.*",), arguments={"betas": [0.8, 0.9]})
    with pytest.raises(InvalidInput, match=r"Muon has no 'betas' of its own for a group, and 'blocks\.0\.\*' sets it"):
        groups(ADAMW, betas, name="Muon").check(Model())
