"""The task: the model, data and loss that the user's own function gives to `graphpipe train`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import Graph
from graphpipe.model.inputs import Inputs, name_inputs, read_layout
from graphpipe.model.without_data.construction import ModelBuilder
from graphpipe.model.without_data.meta_model import without_data
from graphpipe.run.initial_weights.weight_source import WeightSource
from graphpipe.run.stage.loss import LossFunction, kind_of
from graphpipe.run.stage.mini_batch import check_rows
from graphpipe.training.task.callback import Callback
from graphpipe.training.task.sample_order import OrderFunction, check_sampler
from graphpipe.training.task.sample_source import Collate, SampleSource, columns_of_leaves, is_pair, with_size
from graphpipe.training.task.user_function import call, why_not_called

Batch = tuple[Inputs, Any]
"""Inputs and targets of some samples, as `Pipeline.step` takes them."""


_FUNCTIONS = {
    "loss_fn": ("outputs", "targets"),
    "epoch": ("epoch", "batch_size", "seed"),
    "collate": ("samples",),
    "optimizer": ("parameters",),
    "scheduler": ("optimizer", "steps"),
    "accuracy": ("outputs", "targets"),
    "metrics": ("outputs", "targets"),
}
"""The functions of a task, with their arguments. All but the loss may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The model, its data and loss, and how to evaluate it."""

    module: nn.Module | ModelBuilder
    """The model with its initial weights, on the CPU. It is made after `torch.manual_seed`, so that all ranks make the
    same weights. Each rank moves its stages to its own device. It may be on the meta device, or a function that builds
    it: then no process has the whole model, and each rank fills the weights of its own stages."""
    example_inputs: Inputs
    """Real values of a few samples, for capturing and profiling."""
    loss_fn: LossFunction
    epoch: Callable[[int, int, int], Iterable[Batch]] | None = None
    """(epoch from 0, batch size, seed) -> the mini-batches of the epoch, all of this size and equal on every rank,
    which reads all of them. Give this or `dataset`."""
    dataset: Any = None
    """A data set with a length and samples by index: of torch, of Hugging Face `datasets`, or a list. A sample is a
    pair (inputs, target), or a dict. Each rank reads only the samples that its stages consume (docs/data.md)."""
    collate: Collate | None = None
    """Makes (inputs, targets), or a dict of both by name, from a list of samples. None: tensors, numbers and lists of
    numbers are stacked. It gets only the samples, and the columns, that are read on a rank."""
    targets: str | Sequence[str] | None = None
    """Name of the target in a sample that is a dict. For several names, or none, `()`, the loss gets a dict. None: a
    sample is a pair, or `collate` returns one."""
    columns: Mapping[str, str | Sequence[str]] = field(default_factory=dict[str, str | Sequence[str]])
    """The columns of the data set that an input or target is made of, by its name; by default the column of its name. A
    data set with `column_names` and `select_columns` is asked only for the columns that a rank needs."""
    sampler: "OrderFunction | Sampler[int] | None" = None
    """(epoch from 0, seed) -> indices of the epoch's samples, in order; or a sampler of torch. None: all samples, in an
    order drawn from epoch and seed. What is left of an epoch after the last whole mini-batch is not trained."""
    loads: Any = None
    """How much work samples are, for `train.balance`. Of a data set: a number for each index, or a function of the
    index. With `epoch`: a function of the inputs by name that returns [samples]. A sample may have several numbers, one
    for each kind of work."""
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None
    """Builds an optimizer of the trainable parameters that a rank hosts, in place of that of the configuration. It is
    called several times, with some of the parameters each time."""
    scheduler: Callable[[Optimizer, int], LRScheduler] | None = None
    """(optimizer, steps of the training) -> its learning-rate schedule, in place of that of the configuration."""
    held_out: Any = None
    """Samples for evaluation at the end: a pair (inputs, targets), or a data set with samples as those of `dataset`,
    which is evaluated in mini-batches. None: the model is not evaluated."""
    accuracy: Callable[[Any, Any], float] | None = None
    """(outputs, targets) of the held-out samples -> share of correct outputs."""
    metrics: Callable[[Any, Any], Mapping[str, float]] | None = None
    """(outputs, targets) of the held-out samples -> further numbers by name. Computed on rank 0, as `accuracy` is."""
    callbacks: Sequence[Callback] = ()
    """Called between the steps, on every rank (see `gp.Callback`), before those that `train.callbacks` names."""
    initial_weights: WeightSource | None = None
    """Where the initial weights come from (see `gp.Weights`), unless `train.initial_weights` says so. None: from the
    module, and for tensors on the meta device from the function that built it, or the code of its submodules."""
    graph: Graph | None = None
    """The module's graph, of `capture` with options (such as `forms` or `whole_batch`) or of `from_transformers`. None:
    the module is captured with the default options."""

    @property
    def model(self) -> nn.Module:
        """The module; the one that was built, if a function was given."""
        assert isinstance(self.module, nn.Module)
        return self.module

    def __post_init__(self) -> None:
        """Check the fields before anything runs, and build the model if a function was given.

        Raises:
            InvalidInput: a field has another type, or a function takes other arguments.
        """
        module = cast("object", self.module)
        if callable(module) and not isinstance(module, nn.Module | type):
            module = without_data(cast("ModelBuilder", module))
            object.__setattr__(self, "module", module)
        if not isinstance(module, nn.Module):
            name = module.__name__ if isinstance(module, type) else ""
            what = f"the class {name}" if name else f"a {type(module).__name__}"
            remedy = f"Call it: {name}(...)." if name else ""
            raise InvalidInput(f"module is {what}, must be an nn.Module", where="Task", remedy=remedy)
        if not isinstance(cast("object", self.graph), Graph | None):
            raise InvalidInput(f"graph is a {type(self.graph).__name__}, must be a graph of `capture`", where="Task")
        if (self.epoch is None) == (self.dataset is None):
            what = "neither epoch nor dataset is given" if self.epoch is None else "epoch and dataset are both given"
            raise InvalidInput(what, where="Task", remedy="Give one of them.")
        for name, arguments in _FUNCTIONS.items():
            if name == "loss_fn" or getattr(self, name) is not None:
                _check_function(name, getattr(self, name), *arguments)
        if self.dataset is not None:
            check_dataset(self.dataset, "dataset")
        check_sampler(self.sampler)
        self._check_loads()
        for callback in cast("Sequence[object]", self.callbacks):
            if not isinstance(callback, Callback):
                remedy = "Write a subclass of gp.Callback, and give an object of it."
                raise InvalidInput(f"callbacks has a {kind_of(callback)}", where="Task", remedy=remedy)
        if _holds_tensors(self.held_out):
            as_batch(self.held_out, "held_out")
        elif self.held_out is not None and not is_pair(self.held_out):
            check_dataset(self.held_out, "held_out")

    def _check_loads(self) -> None:
        if self.loads is None or callable(self.loads):
            return
        if self.dataset is None:
            remedy = "Give a function of the inputs by name."
            raise InvalidInput(f"loads is a {kind_of(self.loads)}, must be a function", where="Task", remedy=remedy)
        if len(self.loads) != len(self.dataset):
            what = f"loads has {len(self.loads)} entries, the data set has {len(self.dataset)} samples"
            raise InvalidInput(what, where="Task")

    def source(self) -> SampleSource | None:
        """Return the data set with how its samples become inputs and targets; None if the task gives `epoch`."""
        return None if self.dataset is None else self._source_of(self.dataset, "dataset")

    def held_out_source(self) -> SampleSource | None:
        """Return the same of the samples for evaluation; None if they are a pair, or if there are none."""
        whole = self.held_out is None or is_pair(self.held_out)
        return None if whole else self._source_of(self.held_out, "held_out")

    def _source_of(self, dataset: Any, name: str) -> SampleSource:
        targets = (self.targets,) if isinstance(self.targets, str) else self.targets
        found = SampleSource(
            dataset=dataset,
            layout=(layout := read_layout(self.model, self.example_inputs)),
            collate=self.collate,
            columns={
                **columns_of_leaves(layout),
                **{key: (each,) if isinstance(each, str) else tuple(each) for key, each in self.columns.items()},
            },
            targets=None if targets is None else tuple(targets),
            one_target=isinstance(self.targets, str),
            field=name,
        )
        if unknown := [key for key in found.columns if key not in (*found.inputs, *(found.targets or ()))]:
            known = [*found.inputs, *(found.targets or ())]
            raise InvalidInput(
                f"'{unknown[0]}' is neither an input nor a target", where="columns", remedy=nearest(unknown[0], known)
            )
        return found


def _holds_tensors(found: object) -> bool:
    values = cast("Mapping[str, object]", found).values() if isinstance(found, Mapping) else (found,)
    return any(isinstance(value, Tensor) for value in values)


def check_dataset(dataset: object, where: str) -> None:
    """Check that samples can be read by index.

    Raises:
        InvalidInput: they cannot, or there are none.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, Mapping):
        names = ", ".join(map(str, cast("Mapping[object, object]", dataset)))
        raise InvalidInput(f"is a {kind} of {names}", where=where, remedy="Give one of these data sets.")
    if isinstance(dataset, DataLoader):
        raise InvalidInput(
            "is a DataLoader",
            where=where,
            remedy="Give its data set, collate= and sampler=. train.workers=N starts its workers.",
        )
    if isinstance(dataset, str) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise InvalidInput(
            f"is a {kind}, which has no samples by index and no length",
            where=where,
            remedy="Give epoch=, a function that yields mini-batches, for samples that can only be read in order.",
        )
    try:
        count = len(cast("Sequence[object]", dataset))
    except TypeError as error:
        raise InvalidInput(f"is a {kind} without a length: {error}", where=where) from None
    if not count:
        raise InvalidInput("has no samples", where=where)


def as_batch(found: object, where: str) -> Batch:
    """Return a mini-batch as a pair of inputs and targets.

    Raises:
        InvalidInput: it is not a pair.
    """
    if is_pair(found):
        inputs, targets = cast("Sequence[Any]", found)
        return inputs, targets
    raise InvalidInput(
        f"found a {with_size(found)}, must be a pair (inputs, targets)",
        where=where,
        remedy="Put several inputs into one dict by name, or one tuple: ({'image': image, 'text': text}, labels).",
    )


def check_first(found: object, task: Task, batch_size: int) -> None:
    """Check the first mini-batch of an epoch against the example inputs.

    Raises:
        InvalidInput: it is not a pair, has another number of samples, or other inputs than the examples.
    """
    inputs, targets = as_batch(found, "a mini-batch of the epoch")
    try:
        layout = read_layout(task.model, task.example_inputs)
        size = check_rows(name_inputs(layout, inputs), targets)
    except InvalidInput as error:
        raise InvalidInput(error.what, where="the first mini-batch of the epoch", remedy=error.remedy) from None
    if size != batch_size:
        raise InvalidInput(
            f"yields mini-batches of {size} samples, train.batch_size is {batch_size}",
            where="epoch",
            remedy="Use the batch_size argument of epoch(epoch, batch_size, seed), or change train.batch_size.",
        )


def _check_function(field: str, function: object, *arguments: str) -> None:
    what = f"must be a function of ({', '.join(arguments)})"
    if not callable(function):
        raise InvalidInput(f"{field} is a {type(function).__name__}, {what}", where="Task")
    if why := why_not_called(function, *arguments):
        raise InvalidInput(f"{field} {what}: {why}", where="Task")


def load_task(word: str, folder: str | Path, seed: int) -> Task:
    """Call the user's function after seeding torch, and return its task.

    Args:
        word: `package.module:function` or `file.py:function`.
        folder: of the file or module.
        seed: set before the function is called, for the initial weights.

    Raises:
        InvalidInput: there is no such function, or it does not return a Task.
    """
    torch.manual_seed(seed)
    task = call(word, folder)
    if not isinstance(task, Task):
        raise InvalidInput(
            f"returned {type(task).__name__}, must return a Task",
            where=f"'{word}'",
            remedy="Return graphpipe.Task(module=..., example_inputs=..., loss_fn=..., dataset=...).",
        )
    return task
