"""A backward written by hand in a forward that capture follows was lost, and the model was trained with another one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook, save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import graphpipe as gp
from bench.equivalence.random_models import Reverse
from graphpipe.errors import InvalidInput
from tests.support.programs.plain_training import distance

reverse: Callable[[Tensor], Tensor] = Reverse.apply  # looked up before a capture begins


def through_node(h: Tensor) -> Tensor:
    assert h.grad_fn is not None
    h.grad_fn.register_prehook(lambda gradients: gradients)
    return h


def hooked_if_trained(h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda gradient: 0.5 * gradient)
    return h


def several(h: Tensor) -> Tensor:
    register_multi_grad_hook([h], lambda gradients: None)
    return h


def saved_in_16_bits(h: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda saved: saved.bfloat16(), lambda kept: kept.to(h.dtype)):
        return torch.tanh(h)


SPELLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "function": lambda h: Reverse.apply(h),
    "function by another name": lambda h: reverse(h),
    "hook": hooked_if_trained,
    "node": through_node,
    "several": several,
    "saved tensors": saved_in_16_bits,
    "reentrant": lambda h: checkpoint(torch.tanh, h, use_reentrant=True),
}


class Model(nn.Module):
    """Calls `change` in its own forward, or in that of a block with layers inside."""

    def __init__(self, change: Callable[[Tensor], Tensor], *, inside: bool) -> None:
        super().__init__()
        self.features, self.label = nn.Linear(6, 6), nn.Linear(6, 3)
        self.change = None if inside else change
        self.block = Block(change if inside else torch.tanh)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.features(x))
        h = h if self.change is None else self.change(h)
        return self.label(h) + self.block(h)


class Block(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
        self.out = nn.Linear(6, 3)

    def forward(this, h: Tensor) -> Tensor:
        return this.out(this.body(this.change(h)))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_model_itself_is_refused(spelling: str) -> None:
    with pytest.raises(InvalidInput, match=r"the model itself, .*backward of its own.*test_own_backwards.py, line"):
        gp.capture(Model(SPELLINGS[spelling], inside=False), batch()[0].float())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("spelling", ["function", "function by another name", "hook", "saved tensors"])
def test_a_block_is_kept_whole_and_trained_with_it(spelling: str) -> None:
    torch.manual_seed(1)
    model = Model(SPELLINGS[spelling], inside=True)
    assert "block" in [op.name for op in gp.capture(model, batch()[0].float()).ops]
    assert distance(model, [batch()] * 2, nn.functional.cross_entropy) < 1e-12


@pytest.mark.timeout(120)
def test_a_block_that_shares_a_layer_is_kept_whole() -> None:
    # While torch traces such a model, forwards run on stand-ins for its modules: the model itself was blamed.
    model = Model(SPELLINGS["function"], inside=True)
    model.block.body[0] = nn.Sequential(model.features, nn.Tanh())
    assert "block" in [op.name for op in gp.capture(model, batch()[0].float()).ops]
    assert distance(model, [batch()] * 2, nn.functional.cross_entropy) < 1e-12


@pytest.mark.timeout(60)
def test_the_remedy_works_for_a_checkpoint() -> None:
    torch.manual_seed(1)
    model = Model(lambda h: checkpoint(torch.tanh, h, use_reentrant=False), inside=False)
    assert distance(model, [batch()], nn.functional.cross_entropy) < 1e-12


@pytest.mark.timeout(60)
def test_saving_on_the_host_changes_no_gradient() -> None:
    def saved_on_the_host(h: Tensor) -> Tensor:
        with save_on_cpu():
            return torch.tanh(h)

    torch.manual_seed(1)
    assert distance(Model(saved_on_the_host, inside=False), [batch()], nn.functional.cross_entropy) < 1e-12


@pytest.mark.timeout(60)
def test_a_submodule_to_look_into_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'block' has a backward of its own .* Do not split 'block'"):
        gp.capture(Model(reverse, inside=True), batch()[0].float(), split=["block"])


@pytest.mark.timeout(60)
def test_hooks_of_modules_that_are_followed() -> None:
    model = Model(torch.tanh, inside=True)
    model.block.register_full_backward_hook(lambda module, inner, outer: None)
    assert [op.name for op in gp.capture(model, batch()[0].float()).ops if "block" in op.name] == ["block"]
    model.register_full_backward_pre_hook(lambda module, outer: None)
    with pytest.raises(InvalidInput, match=r"the model itself, has a hook on its backward"):
        gp.capture(model, batch()[0].float())


@pytest.mark.timeout(60)
def test_a_hook_of_the_model_itself_would_not_run() -> None:
    model = Model(torch.tanh, inside=True)
    model.register_forward_hook(lambda module, inputs, output: None)
    with pytest.raises(InvalidInput, match=r"a pipeline never calls the model itself"):
        gp.capture(model, batch()[0].float())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("after", [True, False])
def test_hooks_of_weights_are_refused(after: bool) -> None:
    """They run for each micro-batch, and a clamp of parts is not the clamp of their sum."""
    model = Model(torch.tanh, inside=True)
    if after:
        model.label.weight.register_post_accumulate_grad_hook(lambda weight: None)
    else:
        model.label.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    with pytest.raises(InvalidInput, match=r"'label.weight' has a hook"):
        distance(model, [batch()], nn.functional.cross_entropy)


class Substituting(nn.Module):
    """Calls a layer with other weights than its own, as meta-learning and hypernetworks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = {name: 2 * each for name, each in self.layer.named_parameters()}
        return self.last(torch.tanh(torch.func.functional_call(self.layer, weights, (x,))))


@pytest.mark.timeout(60)
def test_other_weights_in_a_call() -> None:
    """The layer was called with its own weights."""
    with pytest.raises(gp.InvalidInput, match=r"calls 'layer' with other weights than its own \(functional_call\)"):
        gp.capture(Substituting(), torch.randn(4, 6))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Substituting())
    assert distance(model, [(torch.randn(8, 6).double(), torch.randint(3, (8,)))], nn.functional.cross_entropy) < 1e-12


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = nn.utils.parameters_to_vector(self.layer.parameters())
        nn.utils.vector_to_parameters(0.9 * weights.detach(), self.layer.parameters())
        return self.last(torch.tanh(self.layer(x)))


@pytest.mark.timeout(60)
def test_data_that_torch_replaces_for_a_user() -> None:
    """The change was dropped."""
    with pytest.raises(gp.InvalidInput, match=r"replaces the data of"):
        gp.capture(Vectors(), torch.randn(4, 6))


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last, self.calls = nn.Linear(6, 6), nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(torch.tanh(self.layer(x))) / self.calls


@pytest.mark.timeout(60)
def test_a_number_that_a_followed_forward_changes() -> None:
    """It stayed what it was when the model was captured."""
    with pytest.warns(UserWarning, match="the forward of the model itself changes 'calls' and reads it"):
        gp.capture(Annealed(), torch.randn(4, 6))


class Initialised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last, self.first = nn.Linear(6, 6), nn.Linear(6, 3), True

    def forward(self, x: Tensor) -> Tensor:
        scale, self.first = (2.0 if self.first else 1.0), False
        return self.last(torch.tanh(self.layer(x))) * scale


@pytest.mark.timeout(60)
def test_a_flag_that_a_followed_forward_changes() -> None:
    """Only numbers were named, and the first call was followed for ever."""
    with pytest.warns(UserWarning, match="the forward of the model itself changes 'first' and reads it"):
        gp.capture(Initialised(), torch.randn(4, 6))


class AnnealedByAMethod(Annealed):
    def temperature(self) -> int:
        self.calls += 1
        return self.calls

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.layer(x))) / self.temperature()


@pytest.mark.timeout(60)
def test_a_number_that_a_method_of_the_forward_changes() -> None:
    """Only the code of the forward itself was read."""
    with pytest.warns(UserWarning, match="the forward of the model itself changes 'calls' and reads it"):
        gp.capture(AnnealedByAMethod(), torch.randn(4, 6))
