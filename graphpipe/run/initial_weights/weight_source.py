"""The interface of a source of weights: where the values of a rank's own tensors come from."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from graphpipe.graph import ParameterSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTensor:
    """A tensor of a rank's own stages."""

    names: tuple[str, ...]
    """The names of the parameter or buffer in the user's model: several, if it is tied."""
    tensor: Tensor
    """What the stage trains: the whole, or a slice of a layer that the plan splits."""
    whole: Tensor
    """The whole parameter or buffer in the user's model."""
    piece: ParameterSlice | None
    """The slice; None for the whole."""
    saved: bool
    """Whether it is in the model's state_dict, and so in files of weights."""
    writes: int
    """How often the constructor wrote into the whole in place (torch's version counter)."""

    @property
    def name(self) -> str:
        """The first name."""
        return self.names[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRequest:
    """What a rank asks a source for."""

    model: nn.Module
    """The user's model. Tensors of other ranks are on the meta device."""
    wanted: Sequence[OwnTensor]
    """The tensors to fill, which have memory on the CPU."""
    seed: int
    """Seed of the training."""


class WeightSource(ABC):
    """A source of weights: every rank fills the tensors of its own stages from it.

    `check` is called before a rank gives its tensors memory, and `fill` afterwards.
    """

    @abstractmethod
    def check(self, model: nn.Module) -> None:
        """Check that this is a source of the model's weights, without reading them.

        Raises:
            InvalidInput: a tensor is missing, unknown or of another shape. It names the tensor, the file and the
                remedy.
        """

    @abstractmethod
    def fill(self, request: WeightRequest) -> None:
        """Fill the wanted tensors in place.

        Raises:
            InvalidInput: a tensor has no value here.
        """

    @property
    @abstractmethod
    def description(self) -> str:
        """The source in words, the same on every rank, by which ranks find out that they use different ones."""
