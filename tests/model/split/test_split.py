"""Split models compute the same as plain models, for any cut."""

import copy
from collections.abc import Sequence

import pytest
import torch
from hard_models import MODELS, ConvNet, Encoder, Gpt, mlp, two_tower
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stage_runs import assert_same, assert_same_training, captured, make_plan, random_parts, run_stages, total
from torch import Tensor, nn
from torch.nn.utils import prune

from graphpipe.errors import InvalidInput
from graphpipe.graph import Edge, Graph, Op, Shared
from graphpipe.model import DagModule
from graphpipe.model.capture.capture import capture, tied
from graphpipe.model.split.split import build_stages, split
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.run.rehearse.emulated_replica import emulated_specs

LONG = ("gpt", "two_tower", "dlrm", "sequence_first")
"""Models whose cuts take long. Other tests of this file cut the first two."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else []) for name in MODELS]
)
def test_any_cut_trains_like_the_plain_model_at_any_batch_size(name: str) -> None:
    module, made = captured(name)
    for seed, samples in enumerate((2, 3, 5, 7)):
        plan = make_plan(made.graph, random_parts(made.graph, seed))
        programs = build_stages(module, plan, made)
        assert_same_training(module, plan, programs, MODELS[name][1](samples))
        assert_planned_gradients_are_sent(plan, programs)


def assert_planned_gradients_are_sent(plan: Plan, programs: Sequence[StageProgram]) -> None:
    sent = {edge: specs for program in programs for edge, specs in program.sends.items()}
    back = {edge: sum(spec.bytes_per_sample for spec in specs if spec.requires_grad) for edge, specs in sent.items()}
    planned = {edge: plan.sent_bytes(edge, backward=True) for edge in plan.gradient_edges}
    assert {edge: count for edge, count in back.items() if count} == {edge: it for edge, it in planned.items() if it}


def test_one_operator_per_stage() -> None:
    module, made = captured("gpt")
    plan = make_plan(made.graph, [[name] for name in made.graph.order])
    programs = split(module, plan)
    assert len(programs) == len(made.graph.ops)
    assert [program.is_output for program in programs].count(True) == 1
    assert_same_training(module, plan, programs, MODELS["gpt"][1](3))


def chain(graph: Graph, pieces: int) -> list[list[str]]:
    order = [op.name for op in graph.ops]
    size = -(-len(order) // pieces)
    return [order[start : start + size] for start in range(0, len(order), size)]


def test_dropout_obeys_the_users_mode_and_draws_the_same_numbers() -> None:
    module, batch = Encoder(dropout=0.5), MODELS["encoder"][1]
    graph = capture(module, batch(2))
    plan = make_plan(graph, chain(graph, 3))
    programs = split(module, plan)
    inputs = batch(4)
    assert_same_training(module, plan, programs, inputs, seed=7)
    module.eval()
    assert_same(module(**inputs), run_stages(programs, plan, inputs))
    assert_same(module(**inputs), run_stages(programs, plan, inputs))
    for program in programs:
        program.module.train()
    first, second = (run_stages(programs, plan, inputs) for _ in range(2))
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    assert not torch.equal(first, second)


def test_running_statistics_are_updated_in_the_users_module() -> None:
    module, batch = ConvNet(), MODELS["conv_net"][1]
    graph = capture(module, batch(2))
    plan = make_plan(graph, chain(graph, 3))
    norm = module.get_submodule("blocks.0.norm1")
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    programs = split(module, plan)
    run_stages(programs, plan, batch(4))
    assert norm.num_batches_tracked == 1
    assert not torch.equal(norm.running_mean, before)
    owned = {name for program in programs for name in program.buffer_names.values()}
    assert owned == {name for name, _ in module.named_buffers()}


def test_stages_hold_the_users_parameters_under_their_names_and_replicas_hold_copies() -> None:
    module, made = captured("constant")
    keys = list(module.state_dict())
    plan = make_plan(made.graph, [[op.name for op in made.graph.ops]])
    (program,) = split(module, plan)
    users = dict(module.named_parameters())
    for name, parameter in program.module.named_parameters():
        assert users[program.parameter_names[name]] is parameter
    assert sorted(program.parameter_names.values()) == sorted(users)
    assert list(program.buffer_names.values()) == ["shift"]
    replica = program.replicate()
    inputs = {"x": torch.randn(3, 4)}
    assert_same(program(inputs)[1], replica(inputs)[1])
    total(replica(inputs)[1]).backward()
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(parameter.grad is not None for name, parameter in replica.module.named_parameters())
    assert dict(replica.parameter_names) == dict(program.parameter_names)
    assert list(module.state_dict()) == keys


def test_a_model_that_ran_with_a_pruned_weight_is_replicated() -> None:
    """The last forward leaves a computed weight, which Python cannot copy: devices that share a stage failed."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    prune.l1_unstructured(module[0], "weight", 0.5)
    inputs = {"input": torch.randn(3, 4)}
    graph = capture(module, inputs)
    module(inputs["input"]).sum().backward()
    (program,) = split(module, make_plan(graph, [[op.name for op in graph.ops]]))
    replica = program.replicate()
    assert_same(program(inputs)[1], replica(inputs)[1])
    module.zero_grad()
    total(replica(inputs)[1]).backward()
    assert all(parameter.grad is not None for parameter in replica.module.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_hooks_of_submodules_are_called() -> None:
    module = mlp()
    graph = capture(module, torch.zeros(2, 6))
    plan = make_plan(graph, chain(graph, 2))
    programs = split(module, plan)
    seen: list[int] = []
    module.get_submodule("4").register_forward_hook(lambda *args: seen.append(1))
    run_stages(programs, plan, {"input": torch.zeros(2, 6)})
    assert seen == [1]


def test_an_in_place_activation_does_not_change_the_callers_tensor() -> None:
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    graph = capture(module, torch.zeros(2, 4))
    plan = make_plan(graph, chain(graph, 1))
    given_tensor = torch.randn(3, 4)
    before = given_tensor.clone()
    expected = module(before.clone())
    assert_same(expected, run_stages(split(module, plan), plan, {"input": given_tensor}))
    assert torch.equal(given_tensor, before)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, *values: Tensor) -> Tensor:
        return torch.tanh(self.linear(sum(values, torch.zeros(()))))


@st.composite
def dags(draw: st.DrawFn) -> tuple[DagModule, int]:
    count = draw(st.integers(2, 6))
    names = [f"m{number}" for number in range(count)]
    feeds = {}
    for number, name in enumerate(names):
        known = ["a", "b", *names[:number]]
        feeds[name] = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    feeds["m0"] = ["a"]
    feeds["m1"] = ["b", "m0"]
    return DagModule({name: Sum() for name in names}, feeds), draw(st.integers(0, 99))


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(dags())
def test_random_dags_train_alike(case: tuple[DagModule, int]) -> None:
    module, seed = case
    inputs = {"a": torch.randn(3, 3), "b": torch.randn(3, 3)}
    for method in ("export", "declared"):
        graph = capture(module, inputs, method=method)
        plan = make_plan(graph, random_parts(graph, seed))
        assert_same_training(module, plan, split(module, plan), inputs)


class Scores(nn.Module):
    """Returns a value with a gradient, and two that have none: a mask of it, and a copy that is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.linear(x)
        return found, found > 0, found.detach()


class Gated(nn.Module):
    """Linear layers that read different ones of three values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Scores(), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found, mask, fixed = self.first(x)
        return self.third(self.second(found) * mask) + fixed.tanh()


def test_masks_and_detached_values_cost_no_message_back() -> None:
    # Their bytes were counted on the way back, although the runtime sends no gradient for them.
    module = Gated()
    graph = capture(module, torch.zeros(2, 4))
    assert {op.name: len(op.without_gradient) for op in graph.ops if op.without_gradient} == {"first": 2}
    plan = make_plan(graph, [["first"], [op.name for op in graph.ops if op.name != "first"]])
    assert (plan.sent_bytes(0), plan.sent_bytes(0, backward=True)) == (4 * 4 + 4 * 4 + 4, 4 * 4)
    assert_planned_gradients_are_sent(plan, split(module, plan))
    emulated = [(spec.sample_shape, spec.requires_grad) for spec in emulated_specs(plan)[0]]
    assert emulated == [((16,), True), ((20,), False)]


def test_values_without_trainable_parameters_upstream_need_no_gradient() -> None:
    module, made = captured("frozen")
    plan = make_plan(made.graph, [[op.name] for op in made.graph.ops])
    specs = {spec.name: spec for program in split(module, plan) for specs in program.sends.values() for spec in specs}
    assert sorted(spec.requires_grad for spec in specs.values()) == [False, False, True, True]


def test_whole_batch_head_receives_both_towers() -> None:
    module, made = captured("two_tower")
    graph = made.graph
    assert [op.name for op in graph.ops if op.whole_batch] == ["head"]
    towers = [[op.name for op in graph.ops if op.name.startswith(tower)] for tower in ("image", "text")]
    plan = make_plan(graph, [*towers, ["head"]])
    programs = split(module, plan)
    assert [program.model_inputs for program in programs] == [("pixels",), ("tokens",), ()]
    assert [[spec.sample_shape for specs in p.receives.values() for spec in specs] for p in programs] == [
        [],
        [],
        [(6,), (6,)],
    ]


def test_tied_weights_are_trained_in_one_stage_and_in_two() -> None:
    module = Gpt()
    module.head.weight = module.token.weight
    graph = capture(module, torch.zeros(2, 5, dtype=torch.long))
    assert tied(graph) == {"token.weight": ("token", "head")}
    assert graph.shared == (Shared(name="token.weight", bytes=4.0 * 40 * 8),)
    order = [op.name for op in graph.ops]
    for parts in ([order], [order[:4], order[4:]]):
        plan = make_plan(graph, parts)
        assert_same_training(module, plan, split(module, plan), MODELS["gpt"][1](3))
    assert [exchange.parameters for exchange in plan.tied_gradients] == [("token.weight",)]
    module.token.weight.requires_grad_(False)
    frozen = capture(module, torch.zeros(2, 5, dtype=torch.long))
    assert not frozen.shared[0].trainable
    assert not make_plan(frozen, [order[:4], order[4:]]).tied_gradients


def test_calls_of_a_submodule_are_in_one_operator_if_the_copies_of_its_buffers_would_differ() -> None:
    class Normed(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.one, self.two, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), norm

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.two(self.norm(self.one(x))))

    inputs = {"x": torch.randn(3, 4)}
    normed = capture(Normed(nn.BatchNorm1d(4)), inputs)
    (op,) = [op for op in normed.ops if "norm.weight" in op.parameters]
    assert set(op.parameters) >= {"two.weight", "norm.weight"}  # with all that is between the calls
    assert not normed.shared
    module = Normed(nn.LayerNorm(4))
    graph = capture(module, inputs)
    (first,) = graph.predecessors[graph.order[-1]]
    plan = make_plan(graph, [list(graph.order[:-1]), [graph.order[-1]]])
    assert graph.shared
    assert first in plan.stages[0].ops
    assert_same_training(module, plan, split(module, plan), inputs)


class Mixture(nn.Module):
    """Experts that get the rows that chose them, as `rows` or as a `mask`, perhaps only if there are any."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.router, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(1).max(1)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            if self.way == "if any" and not mask.any():
                continue
            if self.way == "unless none" and x[mask].shape[0] == 0:
                continue
            if self.way == "unless len 0" and len(x[mask]) == 0:
                continue
            if self.way != "rows":
                found[mask] = weight[mask, None] * expert(x[mask])
            else:
                (rows,) = torch.where(mask)
                found = found.index_add(0, rows, weight[rows, None] * expert(x[rows]))
        return x + found


@pytest.mark.parametrize(
    "way",
    [
        "unless len 0",
        *(pytest.param(way, marks=pytest.mark.slow) for way in ("rows", "mask", "if any", "unless none")),
    ],
)
def test_a_mixture_of_experts_that_get_some_rows_trains_in_stages(way: str) -> None:
    """The numbers of rows were compared, though they depend on values: "decides by the values in a tensor".

    A mixture that asks whether an expert has rows was refused. By `len(rows)` its rows were taken for samples. It stays
    whole, and the model is cut around it.
    """
    module = nn.Sequential(nn.Linear(4, 4), Mixture(way), Mixture(way), nn.Linear(4, 4))
    inputs = {"input": torch.randn(7, 4, generator=torch.Generator().manual_seed(0))}
    graph = capture(module, inputs)
    assert {op.name.partition(".")[0] for op in graph.ops} >= {"0", "1", "2", "3"}
    least = 3 * 2 * 4 * 4  # of one row, which a mixture multiplies with the matrices of its experts
    assert all(
        any(7 * op.work.flops_per_sample >= least for op in graph.ops if op.name.startswith(path))
        for path in ("1", "2")
    )
    plan = make_plan(graph, [[name] for name in graph.order])
    assert_same_training(module, plan, split(module, plan), inputs)


class Judged(nn.Module):
    """A judge whose answer depends on values, and what its answer decides."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = Judge()
        self.one, self.other = (nn.Sequential(nn.Linear(4, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if self.judge(x) else self.other(x)


class Judge(nn.Module):
    """Answers whether numbers are positive on average."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> bool:
        return bool(self.scale(x).sum() > 0)


def test_a_submodule_stays_whole_around_what_returns_other_things_by_values() -> None:
    module = nn.Sequential(nn.Linear(4, 4), Judged(), nn.Linear(4, 4))
    inputs = {"input": torch.randn(7, 4, generator=torch.Generator().manual_seed(0))}
    graph = capture(module, inputs)
    assert set(graph.order) == {"0", "1", "2"}


def test_a_plan_for_another_model_is_refused() -> None:
    graph = capture(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.zeros(2, 4))
    plan = make_plan(graph, [[op.name for op in graph.ops]])
    with pytest.raises(
        InvalidInput, match=r"made for another model: operator '1' has parameter_bytes 40.0 in the plan"
    ):
        split(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), plan)
    with pytest.raises(InvalidInput, match="this model has no operator '1'"):
        split(nn.Sequential(nn.Linear(4, 4)), plan)
    with pytest.raises(InvalidInput, match="it is for Sequential, this model is Gpt"):
        split(Gpt(), make_plan(graph, [["0"], ["1"]]))


def test_a_graph_without_a_module_is_refused() -> None:
    graph = Graph(name="hand", ops=(Op(name="a"), Op(name="b")), edges=(Edge(source="a", target="b"),))
    with pytest.raises(InvalidInput, match="graph 'hand' was not captured from a module"):
        split(mlp(), make_plan(graph, [["a"], ["b"]]))


def test_edges_of_the_plan_must_match_the_values() -> None:
    module, made = captured("mlp")
    plan = make_plan(made.graph, [["0"], ["2", "4"], ["6", "8"]])
    from dataclasses import replace

    with pytest.raises(InvalidInput, match="goes from stage 's1' to stage 's2', but the plan has no such edge"):
        split(module, replace(plan, edges=plan.edges[:1]))
    extra = replace(plan.edges[0], source=0, target=2)
    with pytest.raises(InvalidInput, match="edge from stage 's0' to stage 's2', but no value goes there"):
        split(module, replace(plan, edges=(*plan.edges, extra)))


def test_splitting_does_not_change_the_module() -> None:
    module = two_tower()
    before = copy.deepcopy(module.state_dict())
    graph = capture(module, MODELS["two_tower"][1](2))
    split(module, make_plan(graph, [[op.name for op in graph.ops]]))
    assert list(module.state_dict()) == list(before)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert not any("_call_impl" in vars(part) for part in module.modules())


def test_submodules_may_have_any_names() -> None:
    # Names that are equal after dots are replaced, and names of attributes of a graph module.
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ModuleDict({"b": nn.Linear(4, 4)})
            self.a_b, self.graph, self.meta, self.tensor_1 = (nn.Linear(4, 4) for _ in range(4))
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.graph(self.a_b(self.a["b"](x)).relu())
            return self.tensor_1(self.meta(x) * self.scale)

    module, inputs = Odd(), {"x": torch.randn(3, 4)}
    graph = capture(module, inputs)
    for parts in ([[*graph.order]], chain(graph, 2)):
        plan = make_plan(graph, parts)
        assert_same_training(module, plan, split(module, plan), inputs)
