"""Weights from files: every rank reads the bytes of its own tensors, and what does not fit is refused by name."""

import json
import pickle
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from run_meta import Words, meta_words, train_words, words_plan
from run_ranks import run_ranks, values
from run_split_rows import model_of, plan_of
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.graph import ParameterSlice
from graphpipe.run.initial_weights.own_tensors import named_tensors
from graphpipe.run.sources.safetensors_reader import SafetensorsReader


@pytest.fixture(scope="module")
def words() -> Words:
    """Return a model with data."""
    torch.manual_seed(4)
    return Words()


def state_of(words: Words) -> dict[str, Tensor]:
    """Return what is saved of it: of tied weights one."""
    return {name: each.clone() for name, each in words.state_dict().items() if name != "score.weight"}


def folder_of(words: Words, folder: Path) -> Path:
    """Write a folder as Hugging Face does, with two files and an index."""
    folder.mkdir()
    state, index = state_of(words), dict[str, str]()
    for number, part in enumerate((sorted(state)[::2], sorted(state)[1::2])):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        save_file({name: state[name] for name in part}, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def source_of(kind: str, words: Words, folder: Path) -> Path:
    """Return where the model's weights are in a format."""
    if kind == "file":
        save_file(state_of(words), folder / "words.safetensors")
        return folder / "words.safetensors"
    if kind == "folder":
        return folder_of(words, folder / "folder")
    if kind == "dcp":
        save_dcp({"model": words.state_dict(), "step": 3}, folder / "dcp")
        return folder / "dcp"
    save_checkpoint(words, folder / "checkpoints")
    return folder


def save_dcp(state: dict[str, Any], folder: Path) -> None:
    """Write a checkpoint of torch's own format."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save(state, checkpoint_id=folder, no_dist=True)


def save_checkpoint(words: Words, folder: Path) -> None:
    """Write a checkpoint of the model under a plan of three stages."""
    with (
        gp.Pipeline(words_plan(3), words, functional.cross_entropy) as pipeline,
        gp.Checkpoints(pipeline, folder) as saved,
    ):
        saved.save()


@pytest.mark.parametrize("kind", ["file", "folder", "dcp", "checkpoint"])
def test_any_plan_reads_any_format(kind: str, words: Words, tmp_path: Path) -> None:
    source = gp.Weights.read(source_of(kind, words, tmp_path))
    assert_of(words, train_words(2, steps=0, weights=source)["initial"])


def assert_of(words: Words, found: dict[str, Tensor]) -> None:
    """Compare tensors with those of the model."""
    expected = {name: tensor for tensor, name in named_tensors(words)}
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_ranks_read_the_bytes_of_their_own_tensors(words: Words, tmp_path: Path) -> None:
    folder = folder_of(words, tmp_path / "folder")
    found = values(run_ranks(read_and_count, 4, tmp_path / "ranks", str(folder)))
    whole = sum(each.nbytes for each in state_of(words).values())
    for rank in found:
        assert_of(words, rank["initial"])
        assert 0 < rank["read"] <= 1.05 * rank["own"] < 0.8 * whole
        assert max(rank["times"].values()) == 1


def read_and_count(folder: str) -> dict[str, Any]:
    """Return what this rank holds, and the bytes that it read."""
    read, times = 0, Counter[str]()
    plain = SafetensorsReader.read

    def counting(self: SafetensorsReader, name: str, piece: ParameterSlice | None) -> Tensor:
        nonlocal read
        tensor = plain(self, name, piece)
        read += tensor.nbytes
        times[name] += 1
        return tensor

    SafetensorsReader.read = counting
    found = train_words(4, steps=0, weights=gp.Weights.read(folder))
    saved = meta_words().state_dict()
    own = {name: each for name, each in found["initial"].items() if name in saved and name != "score.weight"}
    return {
        "initial": found["initial"],
        "read": read,
        "own": sum(each.nbytes for each in own.values()),
        "times": dict(times),
    }


@pytest.mark.parametrize("kind", ["file", "dcp"])
def test_slices_of_split_layers_are_read_alone(kind: str, tmp_path: Path) -> None:
    model = model_of(seed=3)
    if kind == "file":
        path = tmp_path / "wide.safetensors"
        save_file(dict(model.state_dict()), path)
    else:
        path = tmp_path / "dcp"
        save_dcp(dict(model.state_dict()), path)
    for each in values(run_ranks(train_slices, 2, tmp_path / "ranks", str(path))):
        assert each["slices"]
        for name, tensor in each["slices"].items():
            piece = ParameterSlice.parse(name)
            assert piece is not None
            assert torch.equal(tensor, model.state_dict()[piece.parameter][piece.start : piece.stop]), name
        assert kind != "file" or each["read"] <= 1.05 * each["own"]


def train_slices(path: str) -> dict[str, Any]:
    """Return the slices that this rank holds, the bytes that it holds and those that it read."""
    read: list[int] = []
    plain = SafetensorsReader.read

    def counting(self: SafetensorsReader, name: str, piece: ParameterSlice | None) -> Tensor:
        read.append((tensor := plain(self, name, piece)).nbytes)
        return tensor

    SafetensorsReader.read = counting
    model = model_of()
    options = gp.PipelineOptions(initial_weights=gp.Weights.read(path))
    with gp.Pipeline(plan_of("two"), model, functional.mse_loss, options=options) as pipeline:
        state = pipeline.state
        own = {
            state.programs[stage].parameter_names[local]: each.detach().clone()
            for stage in state.hosted
            for local, each in state.programs[stage].module.named_parameters()
        }
    return {
        "slices": {name: each for name, each in own.items() if ParameterSlice.parse(name)},
        "own": sum(each.nbytes for each in own.values()) + 24,
        "read": sum(read),
    }


def refusal(path: Path, model: nn.Module | None = None, **options: Any) -> str:
    """Return why a pipeline does not begin with these weights."""
    try:
        given = gp.PipelineOptions(initial_weights=gp.Weights.read(path, **options))
        gp.Pipeline(words_plan(2), model or meta_words(), functional.cross_entropy, options=given)
    except InvalidInput as refused:
        return str(refused)
    return "not refused"


def test_missing_unknown_and_other_tensors_are_named(words: Words, tmp_path: Path) -> None:
    path, state = tmp_path / "w.safetensors", state_of(words)
    save_file({name: each for name, each in state.items() if name != "dense.0.bias"}, path)
    assert refusal(path).startswith(f"{path}: has no 'dense.0.bias', which this model has")
    found = train_words(2, steps=0, weights=gp.Weights.read(path, new=["dense.*.bias"]))["initial"]
    assert torch.equal(found["dense.2.bias"], state["dense.2.bias"])
    assert torch.equal(found["dense.0.bias"], train_words(1, steps=0)["initial"]["dense.0.bias"])
    save_file(state | {"more": torch.zeros(1)}, path)
    assert refusal(path).startswith(f"{path}: has 'more', which this model does not have")
    assert_of(words, train_words(2, steps=0, weights=gp.Weights.read(path, ignore=["mor?"]))["initial"])
    save_file(state | {"dense.0.bias": torch.zeros(3)}, path)
    assert "'dense.0.bias' is float32[3] in it and float32[32] in this model" in refusal(path)
    save_file(state | {"dense.0.bias": torch.zeros(32, dtype=torch.int32)}, path)
    assert "'dense.0.bias' is int32[32] in it and float32[32]" in refusal(path)
    save_file(
        {name: each.to(torch.bfloat16) if each.is_floating_point() else each for name, each in state.items()}, path
    )
    found = train_words(2, steps=0, weights=gp.Weights.read(path))["initial"]
    assert torch.equal(found["dense.0.bias"], state["dense.0.bias"].to(torch.bfloat16).float())
    assert "is 'a', must be a list of patterns. Write ['a']" in refusal(path, new="a")


def test_what_is_no_source_is_refused_with_the_remedy(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "missing")
    torch.save({"a": torch.zeros(1)}, tmp_path / "weights.pt")
    assert "Save it as safetensors, because a pickle can run code" in refusal(tmp_path / "weights.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"12345678{}")
    assert f"{tmp_path / 'broken.safetensors'}: cannot be read" in refusal(tmp_path / "broken.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../elsewhere"}}))
    assert "names the file '../elsewhere', which is not in its folder" in refusal(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert "has no 'weight_map'" in refusal(tmp_path)


def test_the_pickle_of_a_checkpoint_of_torch_runs_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    assert "which this format does not have" in refusal(tmp_path)
    assert not (tmp_path / "ran").exists()
    (tmp_path / ".metadata").write_bytes(b"\x80\x04nothing")
    assert "is not the list of a checkpoint" in refusal(tmp_path)


def test_names_with_the_prefix_of_another_tool_are_found(words: Words, tmp_path: Path) -> None:
    path = tmp_path / "ddp.safetensors"
    save_file({f"module.{name}": each for name, each in state_of(words).items()} | {"opt.step": torch.zeros(1)}, path)
    assert_of(words, train_words(2, steps=0, weights=gp.Weights.read(path))["initial"])
