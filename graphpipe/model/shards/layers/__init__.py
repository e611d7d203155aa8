"""The parts of layers that one of the ranks of a replica computes.

`linears` and `adapted` say what a linear layer is, with or without adapters. The modules named `shared` stand for
layers of the user on one rank.
"""
