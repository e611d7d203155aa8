"""A rank reads only the samples and columns that it needs, the same ones from any position and with any workers."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from builders import Part, make_plan
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset, WeightedRandomSampler

import graphpipe as gp
from graphpipe.files.json_body import from_body, to_body
from graphpipe.run.checkpoint.training_state import DataPosition
from graphpipe.training.task.dataset_reader import DatasetReader
from graphpipe.training.task.first_samples import first_samples
from graphpipe.training.task.sample_order import epoch_order
from graphpipe.training.task.sample_work import arrange_of, check_work

COUNT, SIZE = 23, 4


class Columns:
    """A data set with columns, as those of Hugging Face, which notes what is read and draws noise for every image."""

    def __init__(self, names: Sequence[str], read: list[tuple[int, tuple[str, ...]]]) -> None:
        self.column_names, self.read = [*names], read

    def __len__(self) -> int:
        return COUNT

    def select_columns(self, names: Sequence[str]) -> "Columns":
        return type(self)(names, self.read)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append((index, tuple(self.column_names)))
        made = {
            "image": torch.full((3,), float(index)) + torch.rand(3),
            "tokens": [index, index + 1],
            "label": index % 3,
            "text": f"sample {index}",
        }
        return {name: made[name] for name in self.column_names}


ALL = ("image", "tokens", "label", "text")


class Towers(nn.Module):
    """Two inputs."""

    def forward(self, pixels: Tensor, tokens: Tensor) -> Tensor:
        return pixels.sum(1) + tokens.sum(1)


def task_of(dataset: Any, **more: Any) -> gp.Task:
    module, example = Towers(), {"pixels": torch.zeros(2, 3), "tokens": torch.zeros(2, 2, dtype=torch.int64)}
    return gp.Task(module=module, example_inputs=example, loss_fn=nn.functional.mse_loss, dataset=dataset, **more)


def of_columns(read: list[tuple[int, tuple[str, ...]]]) -> gp.Task:
    return task_of(Columns(ALL, read), columns={"pixels": "image"}, targets="label")


def reader_of(task: gp.Task, **more: Any) -> DatasetReader:
    source = task.source()
    assert source is not None
    return DatasetReader(source=source, sampler=task.sampler, batch_size=SIZE, seed=5, **more)


EVERYTHING = gp.Needs(size=SIZE, inputs={"pixels": range(SIZE), "tokens": range(SIZE)}, targets=range(SIZE))
NEEDS = {
    "images": gp.Needs(size=SIZE, inputs={"pixels": range(SIZE)}),
    "half of the texts": gp.Needs(size=SIZE, inputs={"tokens": [1, 3]}),
    "targets": gp.Needs(size=SIZE, inputs={}, targets=range(SIZE)),
    "middle": gp.Needs(size=SIZE, inputs={}),
    "several stages": gp.Needs(size=SIZE, inputs={"pixels": [0, 2], "tokens": [2, 3]}, targets=[3]),
}
COLUMNS = {
    "images": [("image",)] * SIZE,
    "half of the texts": [("tokens",)] * 2,
    "targets": [("label",)] * SIZE,
    "middle": [],
    "several stages": [("image",), ("image", "tokens"), ("tokens", "label")],
}


@pytest.mark.parametrize("which", NEEDS)
def test_only_the_wanted_rows_of_the_wanted_columns_are_read(which: str) -> None:
    read: list[tuple[int, tuple[str, ...]]] = []
    needs, whole = NEEDS[which], reader_of(of_columns([])).batches(EVERYTHING)
    for share in islice(reader_of(of_columns(read)).batches(needs), 7):  # an epoch has 5
        same = next(whole)
        assert share.samples == same.samples
        assert share.inputs.keys() == needs.inputs.keys()
        for name, rows in needs.inputs.items():  # also the random numbers are the same, whoever draws them
            assert torch.equal(share.inputs[name], same.inputs[name][[*rows]])
        assert torch.equal(share.targets, same.targets[[*needs.targets]]) if needs.targets else share.targets is None
        assert sorted(columns for _, columns in read) == sorted(COLUMNS[which])
        assert {index for index, _ in read} == {share.samples[row] for row in needs.rows}
        read.clear()


def as_lists(shares: Iterator[gp.BatchShare]) -> list[object]:
    return [(share.samples, share.inputs["pixels"].tolist(), share.targets.tolist()) for share in shares]


def test_a_reader_resumes_at_once_from_any_position() -> None:
    state = torch.get_rng_state()
    expected = as_lists(islice(reader_of(of_columns([])).batches(EVERYTHING), 13))
    assert len({str(batch) for batch in expected}) == 13
    for done in range(1, 12):
        first = reader_of(of_columns([]))
        assert as_lists(islice(first.batches(EVERYTHING), done)) == expected[:done]
        assert str(first.position) == f"epoch {(done - 1) // 5}, mini-batch {(done - 1) % 5 + 1}"
        read: list[tuple[int, tuple[str, ...]]] = []
        second = reader_of(of_columns(read), position=from_body(DataPosition, to_body(first.position), "position"))
        assert as_lists(islice(second.batches(EVERYTHING), 1)) == expected[done : done + 1]
        assert len(read) == SIZE  # nothing is read again
        second.step_back()
        assert as_lists(islice(second.batches(EVERYTHING), 2)) == expected[done : done + 2]
    assert torch.equal(torch.get_rng_state(), state)


def test_workers_read_the_same_and_tell_which_sample_cannot_be_read() -> None:
    expected = as_lists(islice(reader_of(of_columns([])).batches(EVERYTHING), 7))
    assert as_lists(islice(reader_of(of_columns([]), workers=2).batches(EVERYTHING), 7)) == expected

    class Broken(Columns):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 17:
                raise KeyError("no file 17.png")
            return super().__getitem__(index)

    task = task_of(Broken(ALL, []), targets="label", columns={"pixels": "image"}, sampler=lambda *_: range(20))
    for workers in (0, 1):
        with pytest.raises(gp.InvalidInput, match=r"dataset: sample 17 cannot be read: KeyError.*test_dataset_reader"):
            next(reader_of(task, workers=workers, position=DataPosition(batch=4)).batches(NEEDS["targets"]))


def numbers(epoch: int, seed: int) -> list[int]:
    return [epoch, seed]


SAMPLERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "function": lambda: numbers,
    "tensor": lambda: lambda epoch, seed: torch.arange(9) + epoch,
    "sequential": lambda: SequentialSampler(range(COUNT)),
    "random": lambda: RandomSampler(range(COUNT)),
    "own generator": lambda: RandomSampler(range(COUNT), generator=torch.Generator()),
    "weighted": lambda: WeightedRandomSampler([1.0] * COUNT, 40),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_order_follows_from_epoch_and_seed_alone(name: str) -> None:
    made = SAMPLERS[name]()
    orders = {(epoch, seed): epoch_order(made, COUNT, epoch, seed).tolist() for epoch in (0, 1) for seed in (0, 1)}
    for epoch, seed in reversed([*orders]):
        assert epoch_order(SAMPLERS[name](), COUNT, epoch, seed).tolist() == orders[epoch, seed]
        assert epoch_order(made, COUNT, epoch, seed).tolist() == orders[epoch, seed]
    different = {"sequential": 1, "tensor": 2}.get(name, 4)
    assert len({str(order) for order in orders.values()}) == different
    if name in ("none", "random", "own generator"):
        assert sorted(orders[0, 0]) == [*range(COUNT)]


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        (lambda epoch, seed: [0, COUNT], f"gave the index {COUNT}, the data set has {COUNT} samples"),
        (lambda epoch, seed: [-1], "gave the index -1"),
        (lambda epoch, seed: [[0, 1], [2, 3]], "gave a list, must give the indices of samples one by one"),
        (lambda epoch, seed: 3, "gave a int"),
        (lambda epoch, seed: ["a"], "gave a str"),
        (lambda epoch, seed: torch.rand(3), "gave a Tensor"),
    ],
)
def test_an_order_that_is_none_is_named(sampler: Any, sentence: str) -> None:
    with pytest.raises(gp.InvalidInput, match=sentence):
        epoch_order(sampler, COUNT, 0, 0)


def of_pairs(index: int) -> tuple[dict[str, Tensor], int]:
    return {"pixels": torch.full((3,), float(index)), "tokens": torch.tensor([index, 1])}, index


PIXELS, TOKENS = torch.rand(COUNT, 3), torch.arange(2 * COUNT).view(COUNT, 2)
LABELS = torch.arange(COUNT)


class InOrder(nn.Module):
    """One input."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels


@pytest.mark.parametrize(
    "task",
    [
        task_of([of_pairs(index) for index in range(COUNT)]),
        task_of(
            [({"pixels": [1.0] * 3, "tokens": [index, 1]}, index) for index in range(COUNT)],
            collate=lambda them: (
                {
                    "pixels": torch.tensor([each[0]["pixels"] for each in them]),
                    "tokens": torch.ones(len(them), 2).long(),
                },
                torch.tensor([each[1] for each in them]),
            ),
        ),
        task_of([{"pixels": [1.0, 2.0, 3.0], "tokens": (index, 1), "y": index} for index in range(COUNT)], targets="y"),
        gp.Task(
            module=InOrder(),
            example_inputs=PIXELS[:2],
            loss_fn=nn.functional.mse_loss,
            dataset=TensorDataset(PIXELS, LABELS),
        ),
        gp.Task(
            module=InOrder(),
            example_inputs=PIXELS[:2],
            loss_fn=nn.functional.mse_loss,
            dataset=[{"pixels": each, "one": 1.0, "two": 2} for each in PIXELS],
            targets=["one", "two"],
        ),
    ],
    ids=["pairs", "collate", "dicts", "tensors", "two targets"],
)
def test_data_sets_of_every_kind_become_inputs_and_targets(task: gp.Task) -> None:
    source = task.source()
    assert source is not None
    needs = gp.Needs(size=SIZE, inputs={"pixels": [0, 3]}, targets=[1, 2])
    share = next(reader_of(task).batches(needs))
    inputs, targets = first_samples(task, SIZE, SIZE, 5)
    assert isinstance(inputs, dict)
    assert (share.inputs["pixels"].dtype, share.inputs["pixels"].shape) == (torch.float32, (2, 3))
    assert torch.equal(share.inputs["pixels"], inputs["pixels"][[0, 3]])
    if isinstance(targets, dict):
        assert {name: each.tolist() for name, each in share.targets.items()} == {"one": [1.0] * 2, "two": [2] * 2}
    else:
        assert torch.equal(share.targets, targets[[1, 2]])


@pytest.mark.parametrize(
    ("dataset", "more", "sentence"),
    [
        ({"train": [1], "test": [2]}, {}, "dataset: is a dict of train, test. Give one of these data sets."),
        (iter([1]), {}, "dataset: is a list_iterator, which has no samples by index and no length. Give epoch="),
        (DataLoader([1]), {}, "dataset: is a DataLoader. Give its data set"),  # type: ignore[arg-type]
        ([], {}, "dataset: has no samples"),
        ([1], {"collate": 3}, r"collate is a int, must be a function of \(samples\)"),
        ([1], {"sampler": 3}, "sampler must be a sampler of torch, or a function"),
        ([1], {"sampler": lambda epoch: [0]}, "sampler must be a sampler of torch, or a function"),
        ([1], {"epoch": lambda epoch, batch_size, seed: []}, "epoch and dataset are both given. Give one of them."),
        (None, {}, "neither epoch nor dataset is given"),
        ([of_pairs(0)], {"columns": {"pixel": "image"}}, "columns: 'pixel' is neither an input nor a target. Did you"),
        ([(1, 2, 3)], {}, "dataset: found a list of 3, must be a pair"),
        ([({"pixels": PIXELS[0]}, 0)], {}, "dataset: input 'tokens' is missing; found pixels"),
        ([{"pixels": PIXELS[0]}], {}, "dataset: a sample is a dict, and nothing says which of its values are targets"),
        ([{"pixels": PIXELS[0]}], {"targets": "y"}, "dataset: a sample has no 'tokens'"),
        (Columns(ALL, []), {"targets": "label"}, "dataset: the data set has no column 'pixels'"),
        (Columns(ALL, []), {"targets": "lable", "columns": {"pixels": "image"}}, "Did you mean 'label'"),
        (Columns(ALL, []), {"targets": "text", "columns": {"pixels": "image"}}, "'text' of a sample is a str, which"),
        (
            Columns(ALL, []),
            {"targets": "label", "columns": {"pixels": ("image", "text")}},
            "columns: 'pixels' is made of 2 columns, and nothing says how. Give collate=",
        ),
        ([of_pairs(0)], {"collate": lambda samples: samples[3]}, "collate: raised IndexError: list index out of range"),
        ([of_pairs(0)], {"collate": lambda samples: 3}, "collate: found a int, must be a pair"),
        (
            [of_pairs(0)],
            {"collate": lambda samples: ({"pixels": PIXELS[:3], "tokens": TOKENS[:1]}, LABELS[:1])},
            r"collate: input 'pixels' of shape \[3, 3\] for 1 samples",
        ),
        (
            [of_pairs(0)],
            {"collate": lambda samples: ((PIXELS[:1],), LABELS[:1])},
            "1 inputs were made, the model takes",
        ),
        (
            [of_pairs(0)],
            {"collate": lambda samples: {"pixels": 1, "tokens": 1}, "targets": "y"},
            "target 'y' is missing",
        ),
    ],
)
def test_what_is_wrong_with_a_data_set_is_named(dataset: Any, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(gp.InvalidInput, match=sentence):
        first_samples(task_of(dataset, **more), 1, 1, 0)


def test_samples_of_other_shapes_say_what_to_do() -> None:
    task = task_of([{"pixels": torch.zeros(2 + index), "tokens": TOKENS[0], "y": 0} for index in range(2)], targets="y")
    with pytest.raises(gp.InvalidInput, match="the samples cannot be stacked: RuntimeError: stack expects"):
        first_samples(task, 2, 2, 0)


@pytest.mark.parametrize("loads", [list(range(COUNT)), lambda index: (index, 1)], ids=["list", "function"])
def test_the_samples_of_a_mini_batch_are_balanced_before_they_are_read(loads: Any) -> None:
    """Each mini-batch has its samples, in another order: the two micro-batches have about the same load."""
    task = task_of(Columns(ALL, []), columns={"pixels": "image"}, targets="label", loads=loads)
    check_work(task, ["task"])
    plan = make_plan([Part(micro_batch=2), Part(micro_batch=2)], batch_size=SIZE)
    arrange = arrange_of(task, ["task"], plan)
    assert arrange is not None
    plain, even = (
        islice(reader_of(task, **more).batches(EVERYTHING), 5)  # an epoch
        for more in ({}, {"arrange": arrange})
    )
    for given, placed in zip(plain, even, strict=True):
        assert sorted(given.samples) == sorted(placed.samples)
        least, *_, most = sorted(placed.samples)
        assert {least, most} in (set(placed.samples[:2]), set(placed.samples[2:]))


@pytest.mark.parametrize(
    ("names", "more", "what"),
    [
        (["task"], {}, "names the loads of the task, which has none"),
        (["pixels"], {}, "names the input 'pixels', of which each rank reads only a part"),
        (["pixel"], {}, "'pixel' is no input of the model.*pixels"),
    ],
)
def test_work_that_is_not_known_is_refused(names: list[str], more: dict[str, Any], what: str) -> None:
    with pytest.raises(gp.InvalidInput, match=rf"train\.balance: {what}"):
        check_work(task_of(Columns(ALL, []), targets="label", columns={"pixels": "image"}, **more), names)


def test_loads_of_another_length_are_refused_and_so_are_negative_ones() -> None:
    with pytest.raises(gp.InvalidInput, match="loads has 3 entries, the data set has 23 samples"):
        task_of(Columns(ALL, []), loads=[1, 2, 3])
    plan = make_plan([Part(micro_batch=2), Part(micro_batch=2)], batch_size=SIZE)
    arrange = arrange_of(task_of(Columns(ALL, []), loads=lambda index: -index), ["task"], plan)
    assert arrange is not None
    with pytest.raises(gp.InvalidInput, match="gives -3 for sample 3"):
        arrange([0, 3, 1, 2])
