"""Model inputs by name: the tensors that a user passes, and their description in a graph.

A forward may take nested inputs, such as a dict, and values that are not tensors, such as None:

    the forward takes             {"batch": {"image": tensor, "texts": [tensor, tensor], "scale": 0.5, "mask": None}}
    the pipeline has the tensors  batch.image, batch.texts.0, batch.texts.1
    and their layout has          the dict, the list, 0.5 and None

`layouts` finds out which parameter of a forward gets what, and flattens what a user passes. `containers` takes
containers apart, and builds them again where the forward begins. `input_forms` gives inputs the form in which a
forward takes them.
"""

from graphpipe.model.inputs.containers import dotted
from graphpipe.model.inputs.layouts import (
    Inputs,
    found_inputs,
    name_arguments,
    name_inputs,
    nested_arguments,
    read_layout,
    taking_tensors,
    with_containers,
)
from graphpipe.model.inputs.shapes import blank, describe

__all__ = [
    "Inputs",
    "blank",
    "describe",
    "dotted",
    "found_inputs",
    "name_arguments",
    "name_inputs",
    "nested_arguments",
    "read_layout",
    "taking_tensors",
    "with_containers",
]
