"""What a stage's graph computes with tensors is what the forward computes with them."""

import torch
from stage_runs import assert_same_training, make_plan
from torch import Tensor, nn

from graphpipe.model.capture.capture import capture
from graphpipe.model.split.split import split


class Sampled(nn.Module):
    """Reads a feature map at a transposed grid of places, and clears the first ones: (n, 4, 5, 5) -> (n, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(6, 1)

    def forward(self, image: Tensor) -> Tensor:
        ordinates, abscissas = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
        places = torch.stack((ordinates, abscissas), -1).permute(1, 0, 2)
        found = self.features(image)[:, :, places[..., 0], places[..., 1]]
        found[..., 0] = 0.0
        return self.head(found.reshape(found.shape[0], 4, 6)).flatten(1)


def test_what_was_read_at_transposed_places_can_be_reshaped() -> None:
    """EfficientLoFTR was captured, and its first step failed: "view size is not compatible".

    Indexing returns the layout of its places, but without data torch returns plain rows. Where a forward writes into
    a view, torch decomposes it, and makes a `view` of the `reshape`, which is right for plain rows only.
    """
    model = Sampled()
    graph = capture(model, {"image": torch.randn(2, 4, 5, 5)})
    plan = make_plan(graph, [[op.name] for op in graph.ops])
    assert_same_training(model, plan, split(model, plan), {"image": torch.randn(3, 4, 5, 5)})
