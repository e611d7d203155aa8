"""Loops over the samples of a mini-batch, while a forward is traced whose number of samples is a variable.

Such a loop would fix the number. LLaVA lists the features of all images, and joins the list again with `torch.cat`.
This is followed: it only joins the first two dimensions. Qwen2-VL splits the features of all images by the sizes of the
images, and joins them again: nothing happens to them. Idefics3 leaves out images that only pad a sample.
This is followed as if no sample had any, which every step checks. Everything else that is done with single samples is
refused.
"""

import builtins
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphpipe.errors import InvalidInput
from graphpipe.model.torch_private import flatten, size_at

_UNBIND: tuple[Any, ...] = (torch.unbind, Tensor.unbind)
_SPLIT: tuple[Any, ...] = (torch.split, Tensor.split)
_UNEQUAL: tuple[Any, ...] = (torch.ne, Tensor.ne, Tensor.__ne__)
_TAKE: tuple[Any, ...] = (torch.take_along_dim, Tensor.take_along_dim)
_COMPARING: tuple[Any, ...] = (torch.eq, Tensor.eq, Tensor.__eq__, *_UNEQUAL)
_COUNTING: tuple[Any, ...] = (torch.sum, Tensor.sum, torch.any, Tensor.any, *_UNEQUAL)
"""Operators that turn where a tensor is zero into which of its rows are more than zeros."""
_BUILTINS: Any = builtins
_LEN = len
_FEW = 25
"""With at most so many rows on both sides, `torch.cdist` multiplies no matrices."""
_AUTO = "use_mm_for_euclid_dist_if_necessary"
"""The mode in which it does so by default."""


@torch.library.custom_op("graphpipe::every_row", mutates_args=())
def every_row(rows: Tensor, chosen: Tensor) -> Tensor:
    """Return all rows, which stands for `rows[chosen]`.

    Raises:
        InvalidInput: not all of them are chosen.
    """
    if not chosen.all():
        remedy = "Every sample needs the same number of images: make mini-batches of samples that are alike."
        what = f"{int((~chosen).sum())} of {len(chosen)} images are only padding, and the model leaves them out"
        raise InvalidInput(what, where="mini-batch", remedy=remedy)
    return rows.clone()


@every_row.register_fake
def _(rows: Tensor, chosen: Tensor) -> Tensor:
    del chosen
    return torch.empty_like(rows)


class OneSample:
    """A row of a tensor, of which only its place is known.

    Args:
        tensor: whose first dimension is a variable number of samples.
        position: of the row.
        count: of all rows.
    """

    def __init__(self, tensor: Tensor, position: int, count: int) -> None:
        self.tensor = tensor
        self.position = position
        self.count = count

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Join all rows of one tensor, and refuse everything else."""
        rows, dim = (*args, (kwargs or {}).get("dim", 0), None)[:2]
        if func is torch.cat and isinstance(rows, Sequence) and _are_all_rows(rows) and dim == rows[0].dim:
            return rows[0].joined()
        raise _refused()

    dim = 0
    """Along which all rows can be joined."""

    def joined(self) -> Tensor:
        """Return all rows, one after the other."""
        return self.tensor.flatten(0, 1)

    def item(self) -> "OneSample":
        """Return itself, in place of a number: `tolist` of sizes asks for it."""
        return self

    def __getattr__(self, name: str) -> Any:
        raise _refused()

    def _refuse(self, *_: object) -> Any:
        raise _refused()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __getitem__ = __iter__ = __len__ = _refuse


class OnePart(OneSample):
    """One of the parts into which a tensor is split, with a size that depends on values.

    Args:
        tensor: that is split.
        position: of the part.
        count: of all parts.
        dim: along which it is split.
        reshaped: the tensor with two dimensions, once a part was reshaped so; the parts have it in common.
    """

    def __init__(self, tensor: Tensor, position: int, count: int, dim: int, reshaped: list[Tensor]) -> None:
        super().__init__(tensor, position, count)
        self.dim = dim
        self.reshaped = reshaped

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes, of which the first one depends on values."""
        return (self, *self.tensor.shape[1:])

    def reshape(self, *sizes: Any) -> "OnePart":
        """Return its rows in one dimension: joined, the parts are the rows of the whole tensor."""
        width = self.tensor.shape[-1]
        if self.dim or sizes != (-1, width):
            raise _refused()
        if not self.reshaped:
            self.reshaped.append(self.tensor.reshape(-1, width))
        return OnePart(self.reshaped[0], self.position, self.count, 0, self.reshaped)

    def joined(self) -> Tensor:
        """Return the tensor that was split."""
        return self.tensor


def _are_all_rows(rows: Sequence[Any]) -> bool:
    first = rows[0] if rows else None
    return (
        isinstance(first, OneSample)
        and len(rows) == first.count
        and all(
            type(row) is type(first) and row.tensor is first.tensor and row.position == position
            for position, row in enumerate(rows)
        )
    )


def _refused() -> RuntimeError:
    return RuntimeError("its forward loops over the samples of a mini-batch, whose number is not known before it runs")


class SampleLoops(TorchFunctionMode):
    """While inside, tensors whose first dimension is a variable number fall apart into `OneSample`s.

    Args:
        samples: the number of rows of each of them. A forward that uses it in another way gives another trace for
            another number.
        lengths: whether `len(tensor)` is that variable number, as `tensor.shape[0]` is. Python's own `len` makes a
            plain number of it, which loops need, and which `tensor.view(len(tensor), -1)` cannot have.
    """

    def __init__(self, samples: int, *, lengths: bool = False) -> None:
        super().__init__()
        self.samples = samples
        self.lengths = lengths
        self.count = 0
        """The loops so far."""
        self.zeros: list[Tensor] = []
        """Where tensors are zero, how many zeros their rows have, and which rows have other elements."""

    def __enter__(self) -> Self:
        """Begin to watch tensors."""
        _BUILTINS.len = _length if self.lengths else _LEN
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """End it."""
        _BUILTINS.len = _LEN
        super().__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, or start a loop."""
        if func is Tensor.__len__ and _is_over_samples(*args):  # list(...) asks for it
            self.count += 1
            return size_at(args[0].shape[0], self.samples)
        if func in _UNBIND and _is_over_samples(*args, **(kwargs or {})):
            self.count += 1
            rows = size_at(args[0].shape[0], self.samples)
            return tuple(OneSample(args[0], position, rows) for position in range(rows))
        if func is Tensor.__getitem__ and self._leaves_out_padding(*args):
            return every_row(*args)
        if func in _SPLIT and (parts := _parts(*args, **(kwargs or {}))):
            return parts
        if func is torch.cdist:
            kwargs = with_mode(args, kwargs or {})
        if func in _TAKE and _is_gather(*args, **(kwargs or {})):
            func = _gather
        try:
            result = func(*args, **(kwargs or {}))
        except TypeError as error:
            if any(isinstance(leaf, OneSample) for leaf in flatten((args, kwargs))[0]):  # as a size, in ViLT
                raise _refused() from error
            raise
        if (func in _COMPARING and _is_zero(*args[1:])) or (func in _COUNTING and self._is_of_zeros(args[0])):
            self.zeros.append(result)
        return result

    def _leaves_out_padding(self, tensor: Tensor, index: Any) -> bool:
        # Rows that only pad, by their zeros. Which rows another mask chooses is the model's own matter.
        return self._is_of_zeros(index) and index.dim() == 1 and tensor.dim() > 2 and _is_over_samples(index)

    def _is_of_zeros(self, value: Any) -> bool:
        return any(value is zero for zero in self.zeros)


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Tensor) and _is_over_samples(value) else _LEN(value)


def _is_gather(input: Tensor, indices: Tensor, dim: int | None = None) -> bool:
    # Torch makes a plain number of the number of samples to see whether it must repeat rows. Here it need not.
    if dim is None or input.dim() != indices.dim():
        return False
    sizes = enumerate(zip(input.shape, indices.shape, strict=True))
    return all(str(one) == str(other) for at, (one, other) in sizes if at != dim % input.dim())


def _gather(input: Tensor, indices: Tensor, dim: int) -> Tensor:
    return input.gather(dim, indices)


def _is_zero(other: object = None) -> bool:
    return isinstance(other, int | float) and other == 0


def _parts(
    tensor: Tensor, split_size_or_sections: object = None, dim: int = 0, *, split_size: object = None
) -> tuple[OnePart, ...]:
    # The parts of a tensor that is split by the elements of another one, of which there are some for each sample.
    sizes: Any = split_size_or_sections if split_size is None else split_size
    if not isinstance(sizes, Sequence) or not _are_all_rows(sizes) or sizes[0].tensor.dim() != 1:
        return ()
    reshaped: list[Tensor] = []
    return tuple(OnePart(tensor, position, len(sizes), dim, reshaped) for position in range(len(sizes)))


def _is_over_samples(tensor: Tensor, dim: int = 0) -> bool:
    if dim not in (0, -tensor.dim()) or not isinstance(tensor.shape[0], torch.SymInt):
        return False
    try:
        return bool(size_at(tensor.shape[0], 2))
    except ValueError:  # a number of rows that depends on values
        return False


def without_lists(forward: Callable[..., Any], wanted: Collection[str]) -> Callable[..., Any]:
    """Return a forward without the entries of its output that list samples, such as SmolVLM's `image_hidden_states`.

    Args:
        forward: of a model that returns a dict.
        wanted: entries that stay.
    """

    @wraps(forward)
    def left(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if not isinstance(output, Mapping):
            return output
        entries: Mapping[Any, Any] = output
        lists = [name for name, value in entries.items() if name not in wanted and _has_samples(value)]
        return {name: value for name, value in entries.items() if name not in lists} if lists else output

    return left


def _has_samples(value: object) -> bool:
    return any(isinstance(leaf, OneSample) for leaf in flatten(value)[0])


def with_mode(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call of `torch.cdist`, so that it does not ask for the number of samples.

    By default, torch multiplies matrices if one side has many rows, as the codebook of a codec has. It asks for the
    rows of the first side, too, which may be samples. If the second side has few, distances are computed one by one
    here for any number of samples. They are the same up to rounding.
    """
    other = args[1] if len(args) > 1 else kwargs["x2"]
    rows = other.shape[-2]
    if not isinstance(rows, int) or len(args) > 3 or kwargs.get("compute_mode", _AUTO) != _AUTO:
        return dict(kwargs)
    many = "use_mm_for_euclid_dist" if rows > _FEW else "donot_use_mm_for_euclid_dist"
    return {**kwargs, "compute_mode": many}
