"""The journal and the files of answers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from graphpipe.errors import InvalidInput
from graphpipe.inference.answer_files import FAILED, check_ending, write_answers
from graphpipe.inference.journal import Journal, count_answers, named_outputs, read_answers, title_of
from graphpipe.run.inference.request_queue import Answer, FailedSample

TITLE = title_of("model", "data")
ANSWERS = (
    Answer(outputs={"a": torch.tensor([[1.0], [2.0]]), "b": torch.tensor([3, 4])}, samples=2),
    Answer(outputs=None, samples=1, failed=(FailedSample(sample=0, reason="line 2 is not JSON"),)),
    Answer(
        outputs={"a": torch.tensor([[5.0], [float("inf")]]), "b": torch.tensor([6, 7])},
        samples=2,
        failed=(FailedSample(sample=0, reason="odd"),),
    ),
)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return a journal with three answers."""
    path = tmp_path / "deep" / "answers.partial"
    with Journal(path, TITLE) as written:
        for answer in ANSWERS:
            written.append(answer)
    return path


def test_a_journal_is_continued_after_the_last_whole_answer(journal: Path) -> None:
    whole = journal.read_bytes()
    for cut in range(1, 60):  # the process was killed while it wrote the third answer
        journal.write_bytes(whole[:-cut])
        assert count_answers(journal, TITLE) == 2
    with Journal(journal, TITLE) as again:
        again.append(ANSWERS[2])
    assert count_answers(journal, TITLE) == 3
    assert [each.samples for each in read_answers(journal, TITLE)] == [2, 1, 2]
    journal.write_bytes(whole[:20])
    with pytest.raises(InvalidInput, match="answers of another command"):
        count_answers(journal, TITLE)
    journal.write_bytes(b"")
    assert count_answers(journal, TITLE) == 0


def test_a_journal_of_something_else_is_refused(journal: Path) -> None:
    with pytest.raises(InvalidInput, match="answers of another command"):
        Journal(journal, title_of("model", "other data"))
    assert count_answers(journal, TITLE) == 3


def test_two_writers_exclude_each_other(journal: Path) -> None:
    with Journal(journal, TITLE), pytest.raises(InvalidInput, match="another process writes"):
        Journal(journal, TITLE)


@pytest.mark.parametrize("name", ["a.jsonl", "a.safetensors", "a.npz"])
def test_every_format_has_all_rows_in_order(name: str, journal: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("old")
    write_answers(path, lambda: read_answers(journal, TITLE))
    assert not list(tmp_path.glob("*.part"))
    if name == "a.jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines[0] == {"request": 0, "outputs": {"a": [[1.0], [2.0]], "b": [3, 4]}, "failed": []}
        assert lines[1]["outputs"] is None
        assert lines[2]["outputs"] == {"a": [None, [None]], "b": [None, 7]}  # JSON has no infinity
        assert lines[2]["failed"] == [{"sample": 0, "reason": "odd"}]
        return
    with np.load(path, allow_pickle=False) if name == "a.npz" else _tensors(path) as found:
        # A request that failed as a whole keeps its place: later rows once moved up, beside the wrong requests.
        assert found["b"].tolist() == [3, 4, 0, 6, 7]
        assert found["a"].tolist() == [[1.0], [2.0], [0.0], [5.0], [float("inf")]]
        assert found[FAILED].tolist() == [False, False, True, True, False]


class _tensors(dict[str, torch.Tensor]):
    def __init__(self, path: Path) -> None:
        super().__init__(load_file(path))

    def __enter__(self) -> "_tensors":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_numpy_gets_brain_floats_as_floats(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", TITLE) as written:
        written.append(Answer(outputs=torch.tensor([[0.5]], dtype=torch.bfloat16), samples=1))
    write_answers(tmp_path / "a.npz", lambda: read_answers(tmp_path / "j", TITLE))
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        assert found["output"].tolist() == [[0.5]]


def test_a_file_that_cannot_be_written_leaves_the_old_one(journal: Path, tmp_path: Path) -> None:
    for name in ("a.csv", "answers"):
        with pytest.raises(InvalidInput, match="no known ending"):
            check_ending(tmp_path / name)
    with pytest.raises(InvalidInput, match="cannot be used"):
        write_answers(tmp_path / "missing" / "a.jsonl", lambda: read_answers(journal, TITLE))


def test_outputs_are_named_by_the_way_to_them() -> None:
    one = torch.zeros(1)
    assert list(named_outputs(one)) == ["output"]
    assert list(named_outputs((one, [one]))) == ["output.0", "output.1.0"]
    assert list(named_outputs({"logits": one, "past": ((one, one), None)})) == ["logits", "past.0.0", "past.0.1"]
