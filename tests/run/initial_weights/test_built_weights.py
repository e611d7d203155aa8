"""A function that builds a model gives its weights too: with the constructor's distributions, whatever a rank holds."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from constructed_models import BUILDERS
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.model.without_data.meta_model import construction_of, without_data
from graphpipe.run.device.tensor_memory import give_memory
from graphpipe.run.initial_weights.filled_copy import filled_copy
from graphpipe.run.initial_weights.init_weights import InitWeights
from graphpipe.run.initial_weights.own_tensors import named_tensors, own_tensors
from graphpipe.run.initial_weights.weight_source import WeightRequest

MANY = 500
"""Values of which a standard deviation says something."""


def filled(build: Callable[[], nn.Module], seed: int = 1) -> dict[str, Tensor]:
    """Return all initial values of a model that a function builds."""
    return tensors(filled_copy(without_data(build), InitWeights(), seed))


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model."""
    return {name: tensor.detach().clone() for tensor, name in named_tensors(model)}


def filled_part(build: Callable[[], nn.Module], share: float) -> dict[str, Tensor]:
    """Return the initial values of a rank that holds a random share of the tensors of a model."""
    model = without_data(build)
    everything = own_tensors(model, (), (), unused=True)
    chosen = [each for each in everything if random.Random(f"{share} {each.name}").random() < share] or everything[:1]
    for each in chosen:
        if each.tensor.is_meta:
            give_memory(each.tensor, [model])  # another object may stand for it afterwards
    held = {each.name for each in chosen}
    chosen = [each for each in own_tensors(model, (), (), unused=True) if each.name in held]
    InitWeights().fill(WeightRequest(model=model, wanted=chosen, seed=1))
    return {each.name: each.tensor.detach() for each in chosen}


@pytest.fixture(scope="module", params=BUILDERS)
def built(request: pytest.FixtureRequest) -> tuple[Callable[[], nn.Module], dict[str, Tensor]]:
    """Return a function that builds a model, and the values that ranks fill it with."""
    if request.param.islower():
        pytest.importorskip("transformers")
    build = BUILDERS[request.param]
    return build, filled(build)


def test_values_have_the_distributions_of_the_constructor(built: Any) -> None:
    build, found = built
    torch.manual_seed(0)
    expected = tensors(build())
    assert found.keys() == expected.keys()
    for name, plain in expected.items():
        mine = found[name].double()
        assert mine.shape == plain.shape, name
        plain = plain.double()
        if plain.numel() < 2 or not plain.std() > 0:
            assert torch.equal(mine, plain), name
            continue
        assert torch.equal((mine == 0).sum(), (plain == 0).sum()), name
        if plain.numel() >= MANY:
            assert float(mine.std()) == pytest.approx(float(plain.std()), rel=0.2), name
            assert float(mine.abs().max()) == pytest.approx(float(plain.abs().max()), rel=0.35), name


def test_values_do_not_depend_on_what_else_a_rank_holds(built: Any) -> None:
    build, whole = built
    for share in (0.5, 0.15):
        part = filled_part(build, share)
        assert part.keys() <= whole.keys()
        for name, tensor in part.items():
            assert torch.equal(tensor, whole[name]), name


def test_copies_and_structures_are_those_of_the_constructor() -> None:
    copies = filled(BUILDERS["Copies"])
    assert torch.equal(copies["target.weight"], copies["online.weight"])
    assert torch.equal(copies["frozen.weight"], copies["online.weight"])
    assert torch.equal(copies["encoder.layers.0.linear1.weight"], copies["encoder.layers.2.linear1.weight"])
    words = filled(BUILDERS["Recurrent"])
    for gate in words["inner.weight_hh_l0"].chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(len(gate)), atol=1e-5, rtol=0)
    assert torch.equal(words["inner.bias_ih_l0"].chunk(4)[1], torch.ones(48))
    normed = filled(BUILDERS["Normed"])
    weight = normed["old.weight_v"]
    torch.testing.assert_close(normed["old.weight_g"], weight.norm(dim=1, keepdim=True))


def test_other_seeds_give_other_values() -> None:
    first, second = filled(BUILDERS["ScaledGpt"], 1), filled(BUILDERS["ScaledGpt"], 2)
    assert not torch.equal(first["words.weight"], second["words.weight"])
    assert torch.equal(first["layers.0.norm.weight"], second["layers.0.norm.weight"])


def test_what_no_part_needs_has_no_memory() -> None:
    """A rank with one of the copied layers does not make all of them."""
    model = without_data(BUILDERS["Copies"])
    construction = construction_of(model)
    assert construction is not None
    needed = construction.needed(["encoder.layers.1.linear1.weight"])
    assert len(needed) == 2  # the layer that is copied, and this copy of it
    assert construction.origins["encoder.layers.1.linear1.weight"] in needed


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Return a model that was made on the meta device, whose constructor is lost."""
    with torch.device("meta"):
        return build()


@pytest.mark.parametrize("build", [BUILDERS["ScaledGpt"], lambda: nn.Sequential(zero_head())])
def test_a_model_on_the_meta_device_is_refused_where_its_constructor_drew_more(build: Any) -> None:
    message = r"the constructor wrote '.*(c_proj|words|0)\.weight' .* times .*torch\.device\('meta'\)"
    with pytest.raises(InvalidInput, match=message):
        filled_copy(on_meta(build), InitWeights(), 1)
    with pytest.raises(InvalidInput, match=message):  # a function that makes it there loses the constructor too
        filled(lambda: on_meta(build))


@pytest.mark.parametrize("name", ["Patches", "Recurrent"])
def test_constructors_that_leave_no_trace_on_the_meta_device_are_refused(name: str) -> None:
    """torch's `trunc_normal_` and `orthogonal_` return at once there, and writes into `data` are not counted."""
    with pytest.raises(InvalidInput, match=rf"the constructor of {name} uses '(data|trunc_normal_|orthogonal_)'"):
        filled_copy(on_meta(BUILDERS[name]), None, 1)


def zero_head() -> nn.Module:
    """Return a layer that a function around it fills."""
    layer = nn.Linear(8, 8)
    nn.init.zeros_(layer.weight)
    return layer


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "vit"])
def test_models_of_hugging_face_on_the_meta_device_have_code_of_their_own(name: str) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    expected, found = tensors(BUILDERS[name]()), tensors(filled_copy(on_meta(BUILDERS[name]), None, 1))
    for key, plain in expected.items():
        if plain.numel() >= MANY and plain.is_floating_point() and plain.std() > 0:
            assert float(found[key].std()) == pytest.approx(float(plain.std()), rel=0.2), key


def test_a_function_that_builds_another_model_each_time_is_refused() -> None:
    sizes = iter((4, 5, 4, 5))
    model = without_data(lambda: nn.Linear(next(sizes), 2))
    with pytest.raises(InvalidInput, match=r"another 'weight' each time.*Let it build the same model"):
        filled_copy(model, InitWeights(), 1)


def test_draws_that_depend_on_which_parameters_have_data_are_refused() -> None:
    """torch's `sparse_` draws the rows of zeros only with data, so the draws after it would differ between ranks."""
    model = without_data(sparse)
    with pytest.raises(InvalidInput, match="does something else when its parameters have data"):
        filled_copy(model, InitWeights(), 1)
    assert tensors(filled_copy(model, InitWeights(function=draw_sparse), 1))["weight"].eq(0).sum() >= 16


def sparse() -> nn.Module:
    """Return a layer whose weight has zeros at random rows."""
    layer = nn.Linear(8, 4)
    nn.init.sparse_(layer.weight, 0.5)
    return layer


def draw_sparse(part: nn.Module) -> None:
    """Fill it as a function of the user's."""
    for parameter in part.parameters(recurse=False):
        nn.init.sparse_(parameter, 0.5) if parameter.dim() > 1 else nn.init.zeros_(parameter)


def test_values_of_files_are_read_again_by_the_function_that_reads_them(tmp_path: Any) -> None:
    torch.save(nn.Linear(6, 6).state_dict(), tmp_path / "values.pt")
    expected: Mapping[str, Tensor] = torch.load(tmp_path / "values.pt", weights_only=True)

    def build() -> nn.Module:
        layer = nn.Linear(6, 6)
        layer.load_state_dict(torch.load(tmp_path / "values.pt", weights_only=True))
        return layer

    found = filled(build)
    assert torch.equal(found["weight"], expected["weight"])
    assert torch.equal(found["bias"], expected["bias"])


def test_a_pretrained_model_of_hugging_face_keeps_its_weights(tmp_path: Any) -> None:
    hf = pytest.importorskip("transformers")
    model: Any = BUILDERS["gpt2"]()
    model.save_pretrained(tmp_path)
    plain = tensors(hf.GPT2LMHeadModel.from_pretrained(tmp_path))
    found = filled(lambda: hf.GPT2LMHeadModel.from_pretrained(tmp_path))
    assert all(torch.equal(found[name], each) for name, each in plain.items())


def test_generators_of_the_function_draw_alike_on_every_rank() -> None:
    def build() -> nn.Module:
        generator = torch.Generator().manual_seed(5)
        layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for layer in layers.parameters():
            nn.init.normal_(layer, generator=generator) if layer.dim() > 1 else nn.init.zeros_(layer)
        return layers

    whole = filled(build)
    for share in (0.3, 0.6):
        assert all(torch.equal(tensor, whole[name]) for name, tensor in filled_part(build, share).items())


def test_a_task_takes_its_weights_from_its_function() -> None:
    graph, cluster = gp.capture(lambda: nn.Sequential(zero_head()), torch.randn(8, 8)), gp.Cluster.preset("local:1")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8)
    sgd = lambda each: torch.optim.SGD(each, lr=0.1)  # noqa: E731
    with gp.Pipeline(plan, lambda: nn.Sequential(zero_head()), nn.functional.cross_entropy, sgd) as pipeline:
        pipeline.sync_model()
        model = pipeline._model  # pyright: ignore[reportPrivateUsage]
        assert isinstance(model, nn.Module)
        assert not model.get_parameter("0.weight").any()
