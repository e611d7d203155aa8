"""Real models: planned, cut, and trained on several ranks as plain PyTorch trains them on whole mini-batches."""

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="an optional extra: pip install graphpipe-torch[transformers]")

from run_hugging_face import MODELS, plan_of, run_of, train_all, train_plainly
from run_ranks import run_ranks, values

from graphpipe.graph import Graph

pytestmark = pytest.mark.timeout(600)
TIED = {"t5": "shared.weight", "bart": "model.shared.weight", "gpt2": "transformer.wte.weight"}
KINDS = {"clip": "CLIPOutput", "flava": "FlavaModelOutput", "llava": "Tensor", "vilt": "Tensor"}


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    """Return every model's graph."""
    return {name: run_of(name).graph for name in MODELS}


@pytest.fixture(scope="module")
def plain(graphs: dict[str, Graph]) -> dict[str, dict[str, Any]]:
    """Return what plain PyTorch makes of every model."""
    return {name: train_plainly(name, graph) for name, graph in graphs.items()}


@pytest.fixture(scope="module", params=[2, 4])
def trained(
    request: pytest.FixtureRequest, graphs: dict[str, Graph], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Return what every rank makes of every model, the ranks being started once for all of them."""
    folder = tmp_path_factory.mktemp("plans")
    for name, graph in graphs.items():
        plan_of(graph, request.param).save(folder / f"{name}.json")
    return values(run_ranks(train_all, request.param, folder / "ranks", str(folder), seconds=500))


@pytest.mark.parametrize("name", MODELS)
def test_plans_are_pipelines_over_all_devices_and_part_what_is_tied(name: str, graphs: dict[str, Graph]) -> None:
    for devices in (2, 4):
        plan = plan_of(graphs[name], devices)
        assert len(plan.used_devices) == devices
        assert len(plan.stages) > 1
        if name in TIED:
            assert [TIED[name] in exchange.parameters for exchange in plan.exchanges] == [True]


@pytest.mark.parametrize("name", MODELS)
def test_ranks_train_as_plain_pytorch_does(
    name: str, trained: list[dict[str, Any]], plain: dict[str, dict[str, Any]]
) -> None:
    wanted, seen = plain[name], set[str]()
    for rank in (rank[name] for rank in trained):
        assert rank["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
        for key, gradient in rank["gradients"].items():
            zero = torch.zeros_like(gradient)  # of what the loss does not depend on
            torch.testing.assert_close(gradient, wanted["gradients"].get(key, zero), rtol=1e-5, atol=1e-5, msg=key)
        for key, weight in wanted["state"].items():
            torch.testing.assert_close(rank["state"][key], weight, rtol=1e-5, atol=1e-5, msg=key)
        seen |= rank["gradients"].keys()
    assert wanted["gradients"].keys() <= seen


@pytest.mark.parametrize("name", MODELS)
def test_every_rank_gets_the_evaluation_in_the_models_own_containers(
    name: str, trained: list[dict[str, Any]], plain: dict[str, dict[str, Any]]
) -> None:
    for rank in (rank[name] for rank in trained):
        assert rank["kind"] == KINDS.get(name, "dict")
        assert rank["evaluation"] == pytest.approx(plain[name]["evaluation"], rel=1e-5)
        whole = plain[name]["outputs"] if rank["kind"] != "dict" else plain[name]["outputs"][:1]
        for found, wanted in zip(rank["outputs"], whole, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
