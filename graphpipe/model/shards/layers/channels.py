"""Convolutions that mix all channels, and layers that compute each channel, or each group of them, for itself."""

from torch import nn

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_convolution(part: object) -> bool:
    """Return whether a submodule is a convolution whose outputs read all input channels: it has one group."""
    return type(part) in _CONVOLUTIONS and isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) and part.groups == 1


def channel_groups(part: object) -> int:
    """Return how many groups of channels a layer computes apart from each other; 1 if it mixes all, or is another one.

    Each channel of a norm over samples is one. A convolution with groups, such as a depthwise one, has as many outputs
    as inputs.
    """
    if isinstance(part, _NORMS) and type(part) in _NORMS:
        return part.num_features
    if type(part) is nn.GroupNorm:
        return part.num_groups
    if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) and type(part) in _CONVOLUTIONS:
        return part.groups if part.in_channels == part.out_channels else 1
    return 1


def channels_of(part: object) -> int:
    """Return how many channels such a layer has."""
    if isinstance(part, _NORMS):
        return part.num_features
    if isinstance(part, nn.GroupNorm):
        return part.num_channels
    assert isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d), "no other layer has groups of channels"
    return part.out_channels
