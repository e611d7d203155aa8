"""What one training step of a few samples computed and changed, and how it travels from another process."""

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import torch
from torch import Tensor

_ALIGNED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one training step of a few samples computed and changed."""

    loss: float
    """The mean loss of the samples."""
    outputs: Mapping[str, Tensor]
    """The outputs that have a row for each sample, by their position in the model's output."""
    gradients: Mapping[str, Tensor | None]
    """Of the model's parameters, by name."""
    others: Mapping[str, Tensor | None]
    """Of other trainable tensors that the loss reaches, such as parameters of the loss, by how to name them."""
    buffers: Mapping[str, Tensor]
    """The buffers that the step changed, by name."""
    parameters: Mapping[str, Tensor]
    """The parameters that the forward changed, by name."""
    read_by_loss: tuple[str, ...] = ()
    """Parameters of the model that the loss reads itself, not through the model's outputs. Only of a plain step."""
    values: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What submodules returned and the gradients that arrived there, by path, if they were asked for."""
    drawn: tuple[str, ...] = ()
    """The operations that drew random numbers, which were replaced."""
    remembers: bool = False
    """Whether the forward computes something else when it is called again, with the same weights and buffers. Only of a
    plain step, and not of a second one."""
    seconds: float = 0.0
    """Seconds that the step took."""

    def write(self, file: IO[bytes]) -> None:
        """Write the record into an empty file."""
        header: dict[str, Any] = {
            "loss": self.loss,
            "drawn": self.drawn,
            "seconds": self.seconds,
            "read_by_loss": self.read_by_loss,
            "remembers": self.remembers,
        }
        tensors: list[Tensor] = []
        place = 0
        for name in _TENSORS:
            header[name] = {}
            for key, tensor in getattr(self, name).items():
                if tensor is None:
                    header[name][key] = None
                    continue
                tensor = tensor.detach().to_dense()  # Embeddings may have sparse gradients.
                header[name][key] = [str(tensor.dtype).removeprefix("torch."), [*tensor.shape], place]
                tensors.append(tensor)
                place += -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED
        text = json.dumps(header).encode()
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(b"\0" * (-file.tell() % _ALIGNED))
        for tensor in tensors:
            data = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            file.write(data.data)
            file.write(b"\0" * (-file.tell() % _ALIGNED))
        file.flush()

    @staticmethod
    def read(file: IO[bytes]) -> "StepRecord":
        """Return the record that `write` wrote. Its tensors share the file's memory."""
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        start = -(-(8 + length) // _ALIGNED) * _ALIGNED
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

        def tensor(described: list[Any] | None) -> Tensor | None:
            if described is None:
                return None
            kind, shape, place = described
            dtype, count = getattr(torch, kind), torch.Size(shape).numel()
            if not count:
                return torch.empty(shape, dtype=dtype)
            return torch.frombuffer(memory, dtype=dtype, count=count, offset=start + place).view(shape)

        tensors: dict[str, Any] = {
            name: {key: tensor(described) for key, described in header[name].items()} for name in _TENSORS
        }
        return StepRecord(
            loss=header["loss"],
            outputs=tensors["outputs"],
            gradients=tensors["gradients"],
            others=tensors["others"],
            buffers=tensors["buffers"],
            parameters=tensors["parameters"],
            values=tensors["values"],
            drawn=tuple(header["drawn"]),
            read_by_loss=tuple(header["read_by_loss"]),
            remembers=header["remembers"],
            seconds=header["seconds"],
        )


_TENSORS = ("outputs", "gradients", "others", "buffers", "parameters", "values")
