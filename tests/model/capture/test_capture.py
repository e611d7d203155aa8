"""Captured graphs of small models, against arithmetic by hand and plain PyTorch."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checked_model import checked, cut_everywhere
from hard_models import MODELS, ConvNet, Encoder, Frozen, Gpt, SequenceFirst, mlp, two_tower
from stage_runs import assert_same, make_plan, run_stages
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.model import DagModule
from graphpipe.model.capture.capture import capture
from graphpipe.model.split.split import split


@lru_cache
def gpt() -> Graph:
    return capture(Gpt(), torch.ones(2, 5, dtype=torch.long))


def names(module: nn.Module, inputs: Any, **options: Any) -> list[str]:
    return [op.name for op in capture(module, inputs, **options).ops]


def test_a_linear_layer_by_hand() -> None:
    graph = capture(nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 3)), torch.zeros(2, 10))
    first, second = graph.ops
    assert (first.name, first.kind, first.parameters) == ("0", "Linear", ("0.bias", "0.weight"))
    assert first.parameter_bytes == 4 * (10 * 4 + 4)
    assert first.output_bytes_per_sample == graph.edges[0].bytes_per_sample == 4 * 4
    assert first.work.flops_per_sample == 2 * 10 * 4
    assert first.work.kernels == 2
    assert first.work.traffic_bytes_per_sample == 4 * (10 + 4) + 4 * (4 + 4)
    assert first.work.saved_bytes_per_sample == 4 * 4  # the rectified output; a model input is not an activation
    assert second.work.saved_bytes_per_sample == 0  # its input counts for the operator that made it
    assert second.output_bytes_per_sample == 4 * 3
    assert (first.model_inputs, second.model_inputs) == (("input",), ())
    assert [(item.name, item.sample_shape, item.dtype) for item in graph.inputs] == [("input", (10,), "float32")]


def test_attention_flops_are_counted() -> None:
    module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    (op,) = capture(nn.Sequential(module), torch.zeros(2, 5, 8)).ops
    matrices = 2 * 5 * (8 * 24 + 8 * 8 + 8 * 16 + 16 * 8)
    products = 2 * 2 * 5 * 5 * 8
    assert op.work.flops_per_sample == matrices + products


def test_saved_bytes_equal_those_of_autograd() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh())
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    x = torch.randn(64, 8)
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own | {x.untyped_storage().data_ptr()}:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(x)
    predicted = sum(op.work.saved_bytes_per_sample for op in capture(module, x).ops)
    assert predicted * 64 == sum(saved.values())
    assert output.shape == x.shape


def test_bytes_under_autocast_equal_those_of_autograd() -> None:
    """Plans counted float32, although autocast saves halves, and a copy of each weight for every micro-batch."""
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 6), nn.Softmax(1), nn.Linear(6, 4), nn.Tanh())
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    graph = capture(module, torch.zeros(2, 8), precision="bf16")
    per_sample = sum(op.work.saved_bytes_per_sample for op in graph.ops)
    per_forward = sum(op.work.saved_bytes_per_forward for op in graph.ops)
    # Linear 0 needs no gradient of its input.
    assert per_forward == 2 * (8 * 6 + 6 * 4)
    assert [edge.bytes_per_sample for edge in graph.edges] == [2 * 8, 2 * 6]
    for samples in (8, 64):
        saved: dict[int, Tensor] = {}
        x = torch.randn(samples, 8)

        def pack(tensor: Tensor, found: dict[int, Tensor] = saved) -> Tensor:
            if (key := tensor.untyped_storage().data_ptr()) not in own:
                found[key] = tensor
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with torch.autocast("cpu", dtype=torch.bfloat16), hooks:
            module(x)
        measured = sum(each.untyped_storage().nbytes() for each in saved.values())
        assert measured == samples * per_sample + per_forward


def test_the_precision_is_part_of_the_graph_and_float32_graphs_stay_as_they_were() -> None:
    module, x = mlp(), torch.zeros(2, 6)
    plain = capture(module, x)
    assert plain.origin is not None
    earlier = replace(plain, origin=replace(plain.origin, precision=None))
    assert plain.fingerprint == earlier.fingerprint
    assert capture(module, x, precision="bf16").fingerprint != plain.fingerprint
    with pytest.raises(InvalidInput, match="unknown precision 'bf32'"):
        capture(module, x, precision="bf32")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", [pytest.param("dlrm", marks=pytest.mark.slow), "several_dict", "in_place_glue"])
def test_capturing_again_gives_the_same_graph_on_any_device(name: str) -> None:
    build, batch = MODELS[name]
    first = capture(build(), batch(1))
    again = capture(build().to("meta"), batch(9))
    assert first.fingerprint == again.fingerprint


def test_capturing_does_not_change_the_module() -> None:
    net = ConvNet()
    module = nn.Sequential(net, nn.Dropout(0.5)).eval()
    net.head.weight.grad = torch.ones_like(net.head.weight)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    example = torch.randn(3, 1, 6, 6)
    random = torch.get_rng_state()
    capture(module, example)
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(part.training for part in module.modules())
    assert all(torch.equal(state[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(net.head.weight.grad, torch.ones_like(net.head.weight))
    assert net.stem.weight.grad is None


def test_leaf_blocks_and_library_modules_are_opaque_by_default() -> None:
    tokens = torch.ones(2, 5, dtype=torch.long)
    assert list(gpt().index)[:4] == ["token", "blocks.0.attention", "blocks.0.mlp.0", "blocks.0.mlp.2"]
    assert names(Gpt(), tokens, opaque=["blocks.0"])[:3] == ["token", "blocks.0", "blocks.1.attention"]
    opened = names(Gpt(), tokens, split=["blocks.1.attention"])
    assert "blocks.1.attention.qkv" in opened
    assert "blocks.1.attention.out" in opened
    assert names(Encoder(), tokens.expand(2, 5)[:, :1].expand(2, 7)) == [
        "token", "layers.0", "layers.1", "layers.2", "head",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param("encoder", marks=pytest.mark.slow), "conv_net"])
def test_single_operations_compute_and_save_what_the_submodules_do(name: str) -> None:
    build, batch = MODELS[name]
    module, inputs = build(), batch(4)
    coarse, fine = capture(module, inputs), capture(module, inputs, split="*")
    assert len(fine.ops) >= 2 * len(coarse.ops)
    for figure in ("flops_per_sample", "saved_bytes_per_sample"):
        assert sum(getattr(op.work, figure) for op in fine.ops) == sum(getattr(op.work, figure) for op in coarse.ops)
    assert {op.name for op in fine.ops} >= {
        "encoder": {"layers.0.self_attn.scaled_dot_product_attention", "layers.0.norm1", "layers.0.linear1"},
        "conv_net": {"blocks.0.conv1", "blocks.0.norm1", "blocks.0.relu"},
    }[name]
    plan = make_plan(fine, [[op.name] for op in fine.ops])
    assert_same(module(**inputs), run_stages(split(module, plan), plan, inputs))


def test_a_residual_addition_joins_its_branch_but_a_sum_of_two_branches_does_not() -> None:
    module, batch = MODELS["conv_net"]
    graph = capture(module(), batch(2))
    assert graph.predecessors["blocks.0.relu"] == ("blocks.0.conv2", "blocks.0.skip.0")
    assert set(gpt().predecessors["blocks.0.mlp.2"]) == {"blocks.0.mlp.0", "blocks.0.attention"}


def test_masks_are_computed_where_they_are_read() -> None:
    graph = gpt()
    readers = [op.name for op in graph.ops if op.model_inputs]
    assert readers == ["token", "blocks.0.attention", "blocks.1.attention", "blocks.2.attention"]
    assert all(edge.bytes_per_sample in (4 * 5 * 8, 4 * 5 * 16) for edge in graph.edges)


def test_operators_with_frozen_parameters_are_not_trainable() -> None:
    graph = capture(Frozen(), torch.zeros(2, 5))
    assert {op.name: op.trainable for op in graph.ops if op.name.startswith("frozen")} == {
        "frozen.0": False,
        "frozen.2": False,
    }
    assert graph["frozen.0"].work.saved_bytes_per_sample == 0
    assert graph["live.0"].trainable


def test_a_value_whose_samples_are_not_the_first_dimension_is_passed_on_with_samples_in_front() -> None:
    graph = capture(SequenceFirst(), torch.zeros(2, 5, 4))
    assert [op.name for op in graph.ops] == ["recurrent", "inner", "head"]
    assert [edge.bytes_per_sample for edge in graph.edges] == [4 * 5 * 6, 4 * 6]


def test_the_layers_of_a_transformer_of_torch_are_operators() -> None:
    """Samples are their second dimension by default, and torch compares the values of their mask."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
            self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

        def forward(self, words: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
            return self.head(self.layers(self.embed(words).transpose(0, 1), mask=mask).transpose(0, 1))

    graph = capture(Words(), torch.zeros(2, 5, dtype=torch.long))
    layers = [name.split(".")[2] for op in graph.ops for name in op.parameters if name.endswith("linear1.weight")]
    assert layers == ["0", "1", "2"]
    assert len(graph.ops) >= 3


def test_experts_that_a_forward_finds_by_values_are_one_operator_each() -> None:
    """A loop over the experts that some row is sent to, whose number is not known before it runs, as in DBRX."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(8, 3)
            self.weights = nn.Parameter(torch.zeros(3, 8, 8))

        def forward(self, x: Tensor) -> Tensor:
            best = self.gate(x).argmax(-1)
            out = torch.zeros_like(x)
            for number in nn.functional.one_hot(best, 3).sum(0).nonzero():
                (rows,) = torch.where(best == number)
                out = out.index_add(0, rows, x[rows] @ self.weights[number[0]])
            return x + out

    graph = capture(nn.Sequential(Experts(), Experts()), torch.zeros(2, 8))
    assert [op.name for op in graph.ops] == ["0", "1"]


def test_a_forward_that_left_a_computed_tensor_in_an_attribute_or_names_its_dtype_is_captured() -> None:
    """RecurrentGemma keeps its states, and the router of Switch Transformers converts itself to its dtype."""

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.linear.to(torch.float32)(x)
            return self.kept

    module = nn.Sequential(Keeping(), Keeping())
    module(torch.zeros(2, 4))
    assert len(capture(module, torch.zeros(2, 4)).ops) == 2
    with pytest.raises(InvalidInput, match=r"a forward converts '0.linear.weight' from torch.float64 to torch.float32"):
        capture(module.double(), torch.zeros(2, 4).double())


def test_only_an_output_of_several_operators_is_an_operator_itself() -> None:
    class Head(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    module = DagModule({"a": nn.Linear(4, 4), "head": Head()}, {"a": ["x"], "head": ["a"]}, whole_batch=["head"])
    assert names(module, torch.zeros(2, 4)) == ["a", "head"]
    early = DagModule({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}, {"a": ["x"], "b": ["a"]}, output=["a", "b"])
    assert names(early, torch.zeros(2, 4)) == ["a", "b", "output"]


def test_a_declared_graph_has_one_operator_per_submodule() -> None:
    module, batch = two_tower(), MODELS["two_tower"][1]
    graph = capture(module, batch(2), method="declared")
    assert [(op.name, op.model_inputs, op.whole_batch) for op in graph.ops] == [
        ("image", ("pixels",), False),
        ("text", ("tokens",), False),
        ("head", (), True),
    ]
    exported = capture(module, batch(2), method="export")
    for field in ("flops_per_sample", "saved_bytes_per_sample", "kernels"):
        assert sum(getattr(op.work, field) for op in graph.ops) == sum(getattr(op.work, field) for op in exported.ops)


class Fixed(nn.Module):
    """Cannot be traced with a variable number of samples."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, int(x.shape[0]) // 2, -1).sum(0).repeat(2, 1) if x.shape[0] % 2 == 0 else x


class Splitting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.fixed = Fixed()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return y, self.fixed(y)


class Pair(nn.Module):
    def forward(self, both: tuple[Tensor, Tensor]) -> Tensor:
        return both[0] + both[1]


def test_a_dag_module_that_cannot_be_traced_is_captured_as_declared() -> None:
    module = DagModule({"a": Splitting(), "b": Pair()}, {"a": ["x"], "b": ["a"]})
    with pytest.warns(
        UserWarning, match="captured as declared, one operator per submodule: DagModule cannot be traced"
    ):
        graph = capture(module, torch.zeros(4, 4))
    assert [op.name for op in graph.ops] == ["a", "b"]
    assert graph.origin is not None
    assert graph.origin.method == "declared"
    assert graph.edges[0].bytes_per_sample == 2 * 4 * 4


def test_an_ordinary_module_that_cannot_be_traced_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidInput, match=r"Splitting cannot be traced: .* Or declare the graph with a DagModule"):
        capture(Splitting(), torch.zeros(4, 4))


class Functional(nn.Module):
    """Calls dropout as a function, and counts calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return F.dropout(self.inner(x), 0.1, self.training)


class BatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.mean: Tensor
        self.variance: Tensor
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.inner(x), self.mean, self.variance, training=self.training)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x * 2 + 1
        return self.inner(x)


@pytest.mark.parametrize(
    ("kind", "reason", "inside"),
    [
        (Functional, "training and in evaluation", "changes the buffer"),
        (BatchNorm, "training and in evaluation", "training and in evaluation"),
        (Autocast, "switches a mode", "switches a mode"),
    ],
)
def test_a_forward_that_glue_cannot_express_is_opaque_or_refused(
    kind: type[nn.Module], reason: str, inside: str
) -> None:
    x = torch.zeros(2, 4)
    assert names(nn.Sequential(kind(), nn.Linear(4, 2)), x) == ["0", "1"]
    assert names(nn.Sequential(kind(), nn.Linear(4, 2)), x, split="*")[-1] == "1"
    with pytest.raises(InvalidInput, match=rf"the forward of {kind.__name__}, the model itself, .*{reason}"):
        capture(kind(), x)
    with pytest.raises(InvalidInput, match=rf"the forward of '0' .*{inside}.* Do not split '0'"):
        capture(nn.Sequential(kind(), nn.Linear(4, 2)), x, split=["0"])


def test_tracing_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if bool(x.sum() > 0) else -x

    with pytest.raises(InvalidInput, match="cannot be traced"), warnings.catch_warnings():
        capture(Branch(), torch.zeros(2, 3))
    assert capfd.readouterr() == ("", "")


def test_unknown_names_are_refused() -> None:
    x = torch.zeros(2, 6)
    for option in ("split", "opaque"):
        unknown: dict[str, Any] = {option: ["nope"]}
        with pytest.raises(InvalidInput, match=rf"{option}: 'nope' is not a submodule"):
            capture(mlp(), x, **unknown)
    with pytest.raises(InvalidInput, match="whole_batch: 'nope' is not a submodule or operator"):
        capture(mlp(), x, whole_batch=["nope"])
    with pytest.raises(InvalidInput, match="'0' is both split and opaque"):
        capture(mlp(), x, split=["0"], opaque=["0"])
    with pytest.raises(InvalidInput, match="Sequential is not a DagModule"):
        capture(mlp(), x, method="declared")


def test_whole_batch_operators_are_marked_and_not_joined_to_others() -> None:
    graph = capture(mlp(), torch.zeros(2, 6), whole_batch=["8"])
    assert [op.name for op in graph.ops if op.whole_batch] == ["8"]
    relu = capture(mlp(), torch.zeros(2, 6), whole_batch=["1"])
    assert [op.name for op in relu.ops][:3] == ["0", "1", "2"]


def test_lazy_modules_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"parameter '0.weight' has no shape yet"):
        capture(nn.Sequential(nn.LazyLinear(3)), torch.zeros(2, 6))


class Heads(nn.Module):
    """Returns several values, one of them optional."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor, scale: float = 1.0, deep: bool = True) -> dict[str, Tensor]:
        hidden = self.body(x) * scale
        return {"one": self.one(hidden), "two": self.two(hidden), **({"hidden": hidden} if deep else {})}


def test_only_operators_that_wanted_outputs_need_are_captured() -> None:
    x = torch.randn(3, 4)
    assert {op.name for op in capture(Heads(), x).ops} == {"body", "one", "two", "output"}
    graph = capture(Heads(), x, outputs=["two"])
    assert [op.name for op in graph.ops] == ["body", "two"]
    assert graph.origin is not None
    assert graph.origin.outputs == ("two",)
    with pytest.raises(InvalidInput, match="outputs: the model does not return 'tow'"):
        capture(Heads(), x, outputs=["tow"])
    with pytest.raises(InvalidInput, match="outputs: the model does not return a dict"):
        capture(nn.Linear(4, 2), x, outputs=["two"])


def test_arguments_of_the_forward_are_part_of_the_capture() -> None:
    module, x = Heads(), torch.randn(3, 4)
    graph = capture(module, x, arguments={"deep": False, "scale": 2.0})
    plan = make_plan(graph, [[op.name] for op in graph.ops])
    found = run_stages(split(module, plan), plan, {"x": x})
    assert_same(module(x, deep=False, scale=2.0), found)
    with pytest.raises(InvalidInput, match="a declared graph has no further arguments"):
        capture(DagModule({"a": nn.Linear(4, 2)}, {"a": ["x"]}), x, method="declared", outputs=["a"])


def test_layers_in_a_python_list_cause_a_warning() -> None:
    class Listed(nn.Module):
        def __init__(self, layers: Any) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    with pytest.warns(UserWarning, match=r"'0.layers' holds layers with 40 parameters in a Python list.*nn.ModuleList"):
        capture(nn.Sequential(Listed([nn.Linear(4, 4), nn.Linear(4, 4)])), torch.randn(2, 4))
    frozen, both = Listed([nn.Linear(4, 4).requires_grad_(False)]), Listed([nn.Linear(4, 4)])
    both.add_module("first", both.layers[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (frozen, both, Listed(nn.ModuleList([nn.Linear(4, 4)]))):
            capture(model, torch.randn(2, 4))


@lru_cache
def _ramp(length: int) -> Tensor:
    return torch.arange(length, dtype=torch.float32)


def test_functions_that_keep_their_results_keep_no_tensors_without_data() -> None:
    """DINOv3 keeps the places of its patches. After a capture they had no data, and training stopped."""

    class Placed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * _ramp(x.shape[1])

    module, x = nn.Sequential(nn.Linear(4, 4), Placed()), torch.ones(2, 4)
    graph = capture(module, x)
    assert torch.equal(module(x), module[0](x) * torch.arange(4.0))
    assert capture(module, x) == graph  # also after it ran


def keeping(function: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
    cached = lru_cache(function)
    return lambda length: cached(length)


class Ramps:
    """Keeps its results, as methods do: by itself, as a static method, and inside another function."""

    @lru_cache  # noqa: B019 - models do so
    def method(self, length: int) -> Tensor:
        return torch.arange(length, dtype=torch.float32)

    @staticmethod
    @lru_cache
    def static(length: int) -> Tensor:
        return torch.arange(length, dtype=torch.float32)

    @staticmethod
    @keeping
    def wrapped(length: int) -> Tensor:
        return torch.arange(length, dtype=torch.float32)

    @cached_property
    def four(self) -> Tensor:
        return torch.arange(4, dtype=torch.float32)

    def of_property(self, length: int) -> Tensor:
        return self.four[:length]


@pytest.mark.parametrize("name", ["method", "static", "wrapped", "of_property"])
def test_methods_that_keep_their_results_keep_no_tensors_without_data(name: str) -> None:
    """RT-DETR keeps positions and anchors in methods. After a capture, its own forward no longer ran."""
    ramps = Ramps()

    class Placed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * getattr(ramps, name)(x.shape[1])

    module, x = nn.Sequential(nn.Linear(4, 4), Placed()), torch.ones(2, 4)
    graph, before = capture(module, x), vars(Ramps)[name]
    assert torch.equal(module(x), module[0](x) * torch.arange(4.0))
    assert capture(module, x) == graph
    assert vars(Ramps)[name] is before


@pytest.mark.parametrize("buffer", [False, True])
def test_a_layer_may_keep_what_it_computed_for_its_next_call(buffer: bool) -> None:
    """CLVP keeps the angles of its last length. A second run of such a layer ran other operators, and was refused.

    So did the linear biases of attention in x-transformers, which are kept in a buffer.
    """

    class Keeping(nn.Module):
        kept: Tensor | None

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            if buffer:
                self.register_buffer("kept", None, persistent=False)
            else:
                self.kept = None

        def forward(self, x: Tensor) -> Tensor:
            if self.kept is None:
                self.kept = torch.arange(x.shape[1], dtype=torch.float32).cos()
            return self.linear(x) * self.kept

    module, x = nn.Sequential(Keeping(), Keeping()), torch.ones(2, 4)
    graph = capture(module, x)
    assert [op.name for op in graph.ops] == ["0", "1"]
    assert module[0].kept is None
    plan = make_plan(graph, [["0"], ["1"]])
    assert_same(module(x), run_stages(split(module, plan), plan, {"input": x}))


def test_a_forward_may_return_as_many_rows_as_values_say() -> None:
    """Gemma 4 returns the patches of its images that are no padding. Their unknown number ended the capture."""

    class Picking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.second(self.first(x))
            return y[x[:, 0] > 0] * 2

    module, x = Picking(), torch.tensor([[1.0] * 4, [-1.0] * 4])
    plan = make_plan(graph := capture(module, x), [[op.name] for op in graph.ops])
    assert len(graph.ops) >= 2
    assert_same(module(x), run_stages(split(module, plan), plan, {"x": x}))


def test_a_forward_that_decides_by_values_is_refused_with_the_line() -> None:
    class Deciding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(
        InvalidInput, match=r"decides by the values in a tensor \(test_capture.py, line \d+, in forward"
    ):
        capture(Deciding(), torch.randn(2, 4))


class Numbered(nn.Module):
    """Multiplies as often as its number says, and returns as many columns more."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx, self.linear = layer_idx, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :4]
        for _ in range(self.layer_idx):
            x = self.linear(x)
        return nn.functional.pad(x, (0, self.layer_idx))


def test_layers_that_read_their_number_are_measured_one_by_one() -> None:
    # Equal layers are measured once, and their numbers were ignored: all had the shapes of the first one.
    graph = capture(nn.Sequential(*map(Numbered, (1, 2, 3))), torch.randn(2, 4), opaque=["0", "1", "2"])
    assert [op.work.flops_per_sample for op in graph.ops] == [32, 64, 96]
    assert [op.output_bytes_per_sample for op in graph.ops] == [20, 24, 28]


class Guarded(nn.Module):
    """Decides by values, as the encoder layers of DETR do; `otherwise` is what it does if they are not finite."""

    def __init__(self, otherwise: str) -> None:
        super().__init__()
        self.linear, self.otherwise = nn.Linear(4, 4), otherwise

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        while self.otherwise == "repeat" and (x > 0).any():
            x = x - 1
        if not torch.isfinite(x).all():
            if self.otherwise == "raise":
                raise ValueError("not finite")
            x = x[:, :2] if self.otherwise == "cut" else x.clamp(-1, 1)
        return x


@pytest.mark.parametrize("otherwise", ["clamp", "raise", "repeat"])
def test_a_submodule_that_stays_whole_may_decide_by_values(otherwise: str) -> None:
    graph = capture(nn.Sequential(Guarded(otherwise), Guarded("clamp")), torch.randn(2, 4))
    assert graph.order == ("0", "1")


class GuardedInTraining(nn.Module):
    """Decides by values in training, as the layers of Deformable DETR do, and never reads its second argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, unread: Tensor) -> Tensor:
        x = self.linear(x)
        return x.clamp(-1, 1) if self.training and not torch.isfinite(x).all() else x


def test_layers_that_decide_by_values_only_in_training_come_apart() -> None:
    # In evaluation they were seen to leave an argument unread, in training not: "behaves differently", and the module
    # around them stayed whole.
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.dropout = nn.ModuleList([GuardedInTraining(), GuardedInTraining()]), 0.0

        def forward(self, x: Tensor) -> Tensor:
            levels = torch.as_tensor([[8, 8], [4, 4]]).prod(1).cumsum(0)
            x = nn.functional.dropout(x, self.dropout, training=self.training)
            for layer in self.layers:
                x = layer(x, levels)
            return x

    graph = capture(nn.Sequential(Encoder(), nn.Linear(4, 4)), torch.randn(2, 4))
    assert graph.order == ("0.layers.0", "0.layers.1", "1")


def test_a_submodule_whose_result_has_another_shape_for_other_values_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"returns something else if the values"):
        capture(nn.Sequential(Guarded("cut"), nn.Linear(4, 4)), torch.randn(2, 4))


def test_a_wrong_shape_is_refused_with_the_line_and_nothing_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    message = r"got \[samples, 3\] X \[4, 2\] \(test_capture.py, line \d+, in forward\)\. If plain PyTorch runs it"
    with pytest.raises(InvalidInput, match=message):
        capture(Wrong(), torch.randn(2, 4))
    assert capfd.readouterr() == ("", "")


class Tokens(nn.Module):
    """Asks for the number of samples by `len`, or makes a plain number of it."""

    def __init__(self, *, plain: bool = False) -> None:
        super().__init__()
        self.plain, self.token = plain, nn.Parameter(torch.zeros(1, 4))
        self.linear, self.head = nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        count = int(x.shape[0]) if self.plain else len(x)
        joined = torch.cat([self.token.expand(count, -1), torch.tanh(self.linear(x))], 1)
        return self.head(joined.view(len(x), -1))


def test_len_of_a_tensor_is_its_number_of_samples() -> None:
    # Such a forward was told to use `x.shape[0]`, which the user of a library cannot do.
    cut = cut_everywhere(model := Tokens(), torch.randn(8, 4))
    assert cut.plan.graph.order == ("linear", "head")
    assert checked(model, cut).equal
    assert len(torch.zeros(2)) == 2
    assert type(len(torch.zeros(2))) is int


def test_a_plain_number_of_samples_is_refused_with_a_remedy() -> None:
    # The error was torch.export's "Constraints violated (batch)", with advice on a DagModule.
    with pytest.raises(InvalidInput, match=r"plain number of the number of samples.*x\.shape\[0\] instead of int"):
        capture(Tokens(plain=True), torch.randn(2, 4))


def test_unknown_names_of_inputs_are_refused() -> None:
    class Both(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left + right

    x = torch.randn(2, 4)
    with pytest.raises(InvalidInput, match=r"the forward of Both takes no input 'rihgt'\. Did you mean 'right'"):
        capture(Both(), {"left": x, "rihgt": x})
    with pytest.raises(InvalidInput, match=r"the inputs are a str\. Give a tensor"):
        capture(Both(), "left")  # type: ignore[arg-type]


class Options(nn.Module):
    """Reads one of its inputs only from `**kwargs`, and has another parameter in that place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: Tensor | None = None, **more: Tensor) -> Tensor:
        x = self.first(x) * (1 if scale is None else scale)
        return self.second(x + more["shift"] if "shift" in more else x)


class OnlyOptions(Options):
    def forward(self, **more: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.second(self.first(more["x"]) + more["shift"])


@pytest.mark.parametrize("kind", [Options, OnlyOptions])
@pytest.mark.parametrize("names", [("x", "shift"), ("shift", "x"), ("x", "shift", "unused")])
def test_an_input_that_the_forward_takes_as_a_keyword_is_not_passed_by_position(kind: Any, names: tuple[str, ...]):
    # FNet takes attention masks only as `**kwargs`. They were traced as its second parameter, which changed the result.
    torch.manual_seed(0)
    module, inputs = kind(), {name: torch.randn(4, 4) for name in names}
    graph = capture(module, inputs)
    assert graph.order == ("first", "second")
    plan = make_plan(graph, [[name] for name in graph.order])
    found = run_stages(split(module, plan), plan, inputs)
    assert torch.equal(found, module(**inputs))  # pyright: ignore[reportArgumentType]
