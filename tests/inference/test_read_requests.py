"""Requests of every kind of file, and the files that cannot be used."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input
from graphpipe.inference.read_requests import check_requests, read_requests
from graphpipe.run.inference.request_queue import Refused

X, WORDS = (
    Input(name="x", sample_shape=(2,), dtype="float32"),
    Input(name="words", sample_shape=(), dtype="int64"),
)


def rows(count: int) -> dict[str, Tensor]:
    """Return some samples."""
    return {"x": torch.arange(2.0 * count).view(count, 2), "words": torch.arange(count)}


def write(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write tensors in the format that the file's name says, and return the name."""
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    elif path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **{name: each.numpy() for name, each in tensors.items()})
    else:
        path.write_text("".join(f"{json.dumps({n: t[[i]].tolist() for n, t in tensors.items()})}\n" for i in range(5)))
    return path.name


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.jsonl"])
def test_all_samples_come_in_order(name: str, tmp_path: Path) -> None:
    given = rows(5) | {"label": torch.zeros(5)}
    data = write(tmp_path / name, given if "jsonl" not in name else rows(5))
    check_requests(data, tmp_path, (X, WORDS))
    found = list(read_requests(data, tmp_path, (X, WORDS), 2))
    sizes = [len(each["x"]) for each in found if isinstance(each, dict)]
    assert sizes == ([1] * 5 if name == "a.jsonl" else [2, 2, 1])
    for key, whole in rows(5).items():
        assert torch.equal(torch.cat([each[key] for each in found if isinstance(each, dict)]), whole)


def test_one_array_is_the_only_input_and_doubles_are_rounded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((3, 2), 0.1))
    (found,) = read_requests("a.npy", tmp_path, (X,), 8)
    assert isinstance(found, dict)
    assert torch.equal(found["x"], torch.full((3, 2), 0.1))


def test_a_line_that_cannot_be_used_is_refused_with_its_number_and_costs_no_other(tmp_path: Path) -> None:
    lines = ["[[1, 2]]", "", "oops", '{"y": 1}', "[[1, 2], [3]]", '{"x": [["a", 1]]}', "[" * 3000, '{"x": [[3, 4]]}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = list(read_requests("a.jsonl", tmp_path, (X,), 1))
    reasons = [each.reason if isinstance(each, Refused) else "" for each in found]
    assert [bool(reason) for reason in reasons] == [False, True, True, True, True, True, False]
    assert "line 3 is not JSON" in reasons[1]
    assert "takes no input 'y'" in reasons[2]
    assert "line 6, input 'x'" in reasons[4]


def test_whole_numbers_that_do_not_fit_are_not_changed(tmp_path: Path) -> None:
    narrow = Input(name="words", sample_shape=(), dtype="int32")
    np.savez(tmp_path / "a.npz", allow_pickle=False, words=np.array([1, 2**40]))
    found = list(read_requests("a.npz", tmp_path, (narrow,), 1))
    assert [each["words"].dtype for each in found if isinstance(each, dict)] == [torch.int32, torch.int64]


@pytest.mark.parametrize(
    ("tensors", "parts"),
    [
        ({"words": torch.arange(2)}, "no tensor 'x', which the model reads. Its tensors are words"),
        ({"x": torch.zeros(2, 3), "words": torch.arange(2)}, r"'x' is float32\[3\], the model reads float32\[2\]"),
        ({"x": torch.zeros(2, 2), "words": torch.arange(3)}, "'x' has 2, 'words' has 3"),
        ({"x": torch.zeros(0, 2), "words": torch.arange(0)}, "'x' has 0"),
        ({"x": torch.tensor(1.0), "words": torch.arange(1)}, "'x' has 0"),
    ],
)
def test_a_file_of_other_tensors_is_refused(tensors: dict[str, Tensor], parts: str, tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", tensors)
    with pytest.raises(InvalidInput, match=parts):
        check_requests("a.safetensors", tmp_path, (X, WORDS))


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.npy", "a.jsonl", "a.csv", "a.py:nothing"])
def test_files_that_are_damaged_or_missing(name: str, tmp_path: Path) -> None:
    for content in (None, b"", b"\x80\x04garbage"):
        if content is not None and ":" not in name:
            (tmp_path / name).write_bytes(content)
        elif content is not None:
            return
        if name == "a.jsonl" and content is not None:
            continue  # an empty file has no requests, and a bad line is a refused request
        with pytest.raises(InvalidInput):
            list(read_requests(name, tmp_path, (X,), 1))


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(InvalidInput, match="cannot be read"):
        check_requests("a.npy", tmp_path, (X,))


def test_a_function_must_return_requests(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\ndef one():\n    return torch.zeros(2, 2)\n")
    with pytest.raises(InvalidInput, match="returned Tensor, must return requests"):
        list(read_requests("mine.py:one", tmp_path, (X,), 1))
