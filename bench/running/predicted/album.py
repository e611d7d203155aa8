"""A model of albums: every sample has 1 to 4 images and a text, and its image layers compute only the images it has.

images -> v0 -> v1 -> v2 -+-> head        padded to 4 images a sample; v0 to v2 also read the `counts` of images
text   -> t0 -> t1 -------+

The layers also sleep, in proportion to what they compute, so that a step takes equally long on one core and on a core
per stage. The image layer is an operator registered with torch: capture then knows the shape of its result, which does
not depend on the counts, and does not run it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.costs import Curve
from graphpipe.costs.op_cost import OpCost
from graphpipe.model import DagModule
from graphpipe.run.rehearse.emulated_replica import sleep

IMAGE_SECONDS = 20e-3
"""Of an image in the forward of a layer; its backward takes twice that, half of it for either gradient."""
TEXT_SECONDS = 40e-3
"""Likewise of a text."""
MOST_IMAGES, WIDTH = 4, 16
IMAGE_LAYERS = ("v0", "v1", "v2")
LAYERS = {
    "v0": ["images", "counts"],
    "v1": ["v0", "counts"],
    "v2": ["v1", "counts"],
    "t0": ["text"],
    "t1": ["t0"],
    "head": ["v2", "t1"],
}
"""Inputs of each layer."""


def _real(images: Tensor, counts: Tensor) -> Tensor:
    return torch.arange(images.shape[1]) < counts[:, None]


@torch.library.custom_op("album::image_layer", mutates_args=())
def image_layer(images: Tensor, counts: Tensor, weight: Tensor) -> Tensor:
    """Return the images of every sample times a matrix; the padding stays 0. All images are one flat batch."""
    real = _real(images, counts)
    flat = images[real]
    sleep(IMAGE_SECONDS * len(flat))
    result = torch.zeros_like(images)
    result[real] = flat @ weight
    return result


@image_layer.register_fake
def _(images: Tensor, counts: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(images)


@torch.library.custom_op("album::image_layer_backward", mutates_args=())
def image_layer_backward(gradient: Tensor, images: Tensor, counts: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the images and of the matrix."""
    real = _real(images, counts)
    flat, arrived = images[real], gradient[real]
    sleep(2 * IMAGE_SECONDS * len(flat))
    result = torch.zeros_like(images)
    result[real] = arrived @ weight.T
    return result, flat.T @ arrived


@image_layer_backward.register_fake
def _(gradient: Tensor, images: Tensor, counts: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(images), torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
    images, counts, weight = ctx.saved_tensors
    to_images, to_weight = image_layer_backward(gradient, images, counts, weight)
    return to_images, None, to_weight


image_layer.register_autograd(_backward, setup_context=_keep)


class ImageLayer(nn.Module):
    """A matrix product of the images that a sample has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, images: Tensor, counts: Tensor) -> Tensor:
        """Return images of the same shape."""
        return image_layer(images, counts, self.weight)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, seconds: float) -> Tensor:
        ctx.seconds = 2 * seconds
        sleep(seconds)
        return given.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        sleep(ctx.seconds)
        return gradients[0].clone(), None


class TextLayer(nn.Module):
    """A linear layer of the sum of its inputs, which sleeps if sleeping is switched on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.sleeps = False

    def forward(self, *given: Tensor) -> Tensor:
        """Return one vector per sample."""
        vectors = [each.sum(dim=1) if each.ndim == 3 else each for each in given]
        result = self.linear(torch.stack(vectors).sum(dim=0))
        return _Sleep.apply(result, TEXT_SECONDS * len(result)) if self.sleeps else result


def album() -> DagModule:
    """Return the model."""
    torch.manual_seed(0)
    layers = {name: ImageLayer() if name in IMAGE_LAYERS else TextLayer() for name in LAYERS}
    return DagModule(layers, LAYERS, name="album")


def tire(model: nn.Module) -> None:
    """Let the text layers sleep from now on: capture, which runs them on other numbers of samples, need not."""
    for module in model.modules():
        if isinstance(module, TextLayer):
            module.sleeps = True


def batch(counts: Sequence[float]) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and targets of samples with so many images."""
    generator = torch.Generator().manual_seed(0)
    samples = len(counts)
    images, text, wanted = (
        torch.randn(samples, *shape, generator=generator) for shape in ((MOST_IMAGES, WIDTH), (WIDTH,), (WIDTH,))
    )
    numbers = torch.tensor([int(count) for count in counts])
    return {"images": images * _real(images, numbers)[..., None], "counts": numbers, "text": text}, wanted


def graph() -> gp.Graph:
    """Return the model's graph."""
    return gp.capture(album(), batch([1, 2, 3, 4])[0])


def cluster(devices: int) -> gp.Cluster:
    """Return devices that do not share cores, because sleeping layers do not need one."""
    return replace(gp.Cluster.preset(f"local:{devices}"), cores_per_node=None)


def costs(graph: gp.Graph, cluster: gp.Cluster) -> gp.CostTable:
    """Return the costs of the layers for samples of one image, which are their sleeping times."""
    rows: list[OpCost] = []
    for op in graph.ops:
        layer = op.name.partition(".")[0]
        curve = Curve(lines=((0.0, IMAGE_SECONDS if layer in IMAGE_LAYERS else TEXT_SECONDS),))
        rows += [
            OpCost(
                op=op.name,
                device_type=device.name,
                forward=curve,
                input_gradient=curve,
                weight_gradient=curve,
                source="imported",
            )
            for device in cluster.device_types
        ]
    return gp.CostTable(graph_fingerprint=graph.fingerprint, rows=tuple(rows))
