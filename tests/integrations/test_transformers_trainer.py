"""`PipelineTrainer` trains, evaluates, saves and resumes as `transformers.Trainer` does in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("accelerate", reason="an optional extra: pip install graphpipe-torch[trainer]")
pytest.importorskip("peft", reason="adapters are tested with peft: pip install peft")

import peft
import transformers
from run_ranks import run_ranks, values
from run_trainers import MODELS, Samples, arguments, gpt2, result_of, train_on_ranks, trainer, two_stages
from safetensors.torch import load_file
from transformers import Trainer
from transformers.models.clip.modeling_clip import image_text_contrastive_loss

from graphpipe.errors import NonFiniteLoss
from graphpipe.integrations.transformers import PipelineTrainer

pytestmark = pytest.mark.timeout(600)
KEPT = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "epoch"}
JOBS: dict[str, dict[str, Any]] = {
    "gpt2": {**KEPT, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1},
    "t5": {"eval_strategy": "epoch", "predict_with_generate": True, "generation_max_length": 12},
    "llava": {"eval_strategy": "epoch", "max_steps": 2},
    "lora": {"eval_strategy": "epoch", "save_strategy": "epoch"},
}
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in ("t5", "llava") else []) for name in JOBS]
"""`make test` trains T5 in one process only, and no LLaVA: CLIP has pictures too, and is trained below."""
COMPARED = {"loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "eval_total", "train_loss"}


def jobs_of(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """Return the trainings of the models that a selected test is about which asks for a fixture."""
    using = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and request.fixturename in item.fixturenames
    ]
    calls = [getattr(item, "callspec", None) for item in using]
    names = {"gpt2", "lora", *(call.params.get("name") for call in calls if call is not None)}
    return {name: more for name, more in JOBS.items() if name in names}


@pytest.fixture(scope="module")
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what `Trainer` makes of every model in one process."""
    folder, results = tmp_path_factory.mktemp("plain"), {}
    for name, more in jobs_of(request).items():
        trained = trainer(name, folder / name, pipeline=False, **more)
        trained.train()
        results[name] = result_of(trained)
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the ranks' checkpoints."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, folder: Path) -> list[dict[str, Any]]:
    """Return what two ranks make of every model; they are started once."""
    return values(run_ranks(train_on_ranks, 2, folder / "world", str(folder), jobs_of(request), seconds=500))


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare the logs of two trainings, and their weights."""
    assert len(found["log"]) == len(expected["log"])
    for entry, other in zip(found["log"], expected["log"], strict=True):
        assert entry.keys() == other.keys()
        for key in COMPARED & entry.keys():
            assert entry[key] == pytest.approx(other[key], rel=1e-5, abs=1e-5), (key, entry, other)
    assert found["weights"].keys() == expected["weights"].keys()
    for key, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][key], weight, rtol=1e-4, atol=2e-5, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_trainer_does(
    name: str, ranks: list[dict[str, Any]], plain: dict[str, dict[str, Any]]
) -> None:
    for rank in ranks:
        assert_same(rank[name], plain[name])
    assert any("eval_loss" in entry for entry in plain[name]["log"])


# On two ranks others are tried above.
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "t5" else pytest.mark.slow) for name in JOBS])
def test_one_process_trains_as_trainer_does(name: str, tmp_path: Path, plain: dict[str, dict[str, Any]]) -> None:
    trained = trainer(name, tmp_path, pipeline=True, **JOBS[name])
    trained.train()
    assert_same(result_of(trained), plain[name])
    assert [stage.micro_batch for stage in trained.plan.stages] == [2, 4]


def test_a_training_resumes_on_as_many_ranks_and_in_one_process_with_trainer_itself(
    ranks: list[dict[str, Any]], folder: Path, tmp_path: Path, plain: dict[str, dict[str, Any]]
) -> None:
    for rank in ranks:
        resumed = rank["gpt2 resumed"]
        assert_same({**resumed, "log": resumed["log"][:-1]}, {**plain["gpt2"], "log": plain["gpt2"]["log"][:-1]})
    again = trainer("gpt2", tmp_path, pipeline=False, **JOBS["gpt2"])
    again.train(resume_from_checkpoint=str(folder / "gpt2" / "checkpoint-2"))
    last = [entry for entry in again.state.log_history if "loss" in entry][-1]
    assert last["loss"] == pytest.approx([e for e in plain["gpt2"]["log"] if "loss" in e][-1]["loss"], rel=1e-5)


def test_adapters_are_saved_as_peft_saves_them(
    ranks: list[dict[str, Any]], folder: Path, plain: dict[str, dict[str, Any]]
) -> None:
    (place,) = (folder / "lora").glob("checkpoint-*")
    saved = load_file(place / "adapter_model.safetensors")
    assert saved
    assert all("lora_" in name for name in saved)
    assert not (place / "model.safetensors").exists()
    loaded = peft.PeftModel.from_pretrained(gpt2(), place).state_dict()
    for name, weight in plain["lora"]["weights"].items():
        torch.testing.assert_close(loaded[name], weight, rtol=1e-4, atol=2e-5, msg=name)


class Weighted:
    """A loss by hand, as users override it: classes have weights, and words count that are labels."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.linspace(0.5, 1.5, 50)
        scores = outputs.logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(scores, labels[:, 1:].flatten(), weight.to(scores), reduction="none")
        loss = loss.sum() / (labels.numel() if num_items_in_batch is None else num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class WeightedTrainer(Weighted, Trainer):
    """In one process."""


class WeightedPipelineTrainer(Weighted, PipelineTrainer):
    """On a pipeline."""


def smoothed(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Return a loss that divides by the number of items, as `compute_loss_func` may."""
    scores = outputs["logits"].log_softmax(-1).flatten(0, 1)
    loss = torch.nn.functional.nll_loss(scores, labels.flatten(), ignore_index=-100, reduction="sum")
    return loss / num_items_in_batch - 0.01 * scores.mean(-1).sum() / num_items_in_batch


@pytest.mark.parametrize("kind", ["overridden", "function", pytest.param("smoothing", marks=pytest.mark.slow)])
def test_the_trainers_own_loss_gets_the_pipelines_outputs(kind: str, tmp_path: Path) -> None:
    kinds = (WeightedTrainer, WeightedPipelineTrainer) if kind == "overridden" else (Trainer, PipelineTrainer)
    logs = []
    for pipeline in (False, True):
        more: dict[str, Any] = {"plan": two_stages, "cluster": "local:2"} if pipeline else {}
        more |= {"compute_loss_func": smoothed} if kind == "function" else {}
        factor = 0.1 if kind == "smoothing" else 0.0
        trained = kinds[pipeline](
            model=gpt2(),
            args=arguments(tmp_path, label_smoothing_factor=factor, eval_strategy="epoch"),
            train_dataset=Samples(20),
            eval_dataset=Samples(6, seed=3),
            **more,
        )
        trained.train()
        logs.append(result_of(trained))
    assert_same(logs[1], logs[0])


class Contrastive:
    """CLIP's loss compares all samples."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        loss = image_text_contrastive_loss(outputs.logits_per_text)
        return (loss, outputs) if return_outputs else loss


class ContrastiveTrainer(Contrastive, Trainer):
    """In one process."""


class ContrastivePipelineTrainer(Contrastive, PipelineTrainer):
    """On a pipeline."""


def test_a_loss_of_all_samples_gets_them_also_in_the_last_mini_batch(tmp_path: Path) -> None:
    layers: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    config = transformers.CLIPConfig(
        text_config={**layers, "vocab_size": 50, "max_position_embeddings": 8, "eos_token_id": 49},
        vision_config={**layers, "image_size": 16, "patch_size": 8},
        projection_dim=8,
    )

    def collate(samples: list[dict[str, Tensor]]) -> dict[str, Any]:
        names = ("input_ids", "attention_mask", "pixel_values")
        return {name: torch.stack([each[name] for each in samples]) for name in names}

    losses = []
    for kind in (ContrastiveTrainer, ContrastivePipelineTrainer):
        torch.manual_seed(0)
        trained = kind(
            model=transformers.CLIPModel(config),
            args=arguments(tmp_path, remove_unused_columns=False),
            train_dataset=Samples(14, pictures=True),
            data_collator=collate,
        )
        trained.train()
        losses.append([entry["loss"] for entry in trained.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(losses[0]) == 2


def test_a_loss_that_is_not_finite_changes_no_weight(tmp_path: Path) -> None:
    model = gpt2()
    with torch.no_grad():
        model.transformer.ln_f.weight[0] = torch.inf
    before = {name: each.clone() for name, each in model.state_dict().items()}
    trained = PipelineTrainer(model=model, args=arguments(tmp_path), train_dataset=Samples(8))
    with pytest.raises(NonFiniteLoss):
        trained.train()
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_it_plans_by_itself_and_trains_in_bfloat16(tmp_path: Path) -> None:
    losses: list[Any] = []
    trained: Any = None
    for kind in (Trainer, PipelineTrainer):
        args = arguments(tmp_path, bf16=True, max_steps=2, activation_checkpointing=True)
        trained = kind(model=gpt2(), args=args, train_dataset=Samples(16), eval_dataset=Samples(4))
        before = trained.evaluate()["eval_loss"]
        trained.train()
        losses.append([before, *(entry["loss"] for entry in trained.state.log_history if "loss" in entry)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert trained.plan.cluster.name == "local:1"
    assert trained.model.transformer.h[0].attn.c_attn.weight.dtype == torch.float32


def test_every_model_of_these_tests_is_trained_by_both() -> None:
    assert JOBS.keys() == MODELS.keys()
