"""Captures of models in the user's cache folder: a model that did not change is not captured again.

An entry is a folder with the graph and the two files of `capture_file`. It is written under another name and renamed,
so that a reader sees all of it or nothing. Reading it runs no code.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import keep_newest, make_private
from graphpipe.graph import Graph, Origin, Precision
from graphpipe.model.capture.capture import Captured, capture_nodes
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.capture_cache.model_key import model_key
from graphpipe.model.capture_file.capture_file import load_capture, save_capture
from graphpipe.model.inputs import Inputs, describe, name_inputs, read_layout
from graphpipe.model.split.split import capture_for
from graphpipe.model.unregistered_layers import warn_of_unregistered_layers
from graphpipe.user_frames import warn_user

MOST_ENTRIES = 64
"""Older ones are removed."""
_GRAPH, _CAPTURE = "graph.json", "capture.json"


def cached_capture(
    module: nn.Module,
    example_inputs: Inputs,
    folder: Path | None,
    *,
    split: Sequence[str] = (),
    precision: Precision = "fp32",
    graph: Graph | None = None,
    fused_attention: bool = False,
) -> Captured:
    """Return the capture of a model, from the cache if it is there; otherwise capture the model and keep the capture.

    Args:
        module: as for `capture`.
        example_inputs: as for `capture`.
        folder: the cache (see `cache_folder`). None: the model is captured, and nothing is kept.
        split: as for `capture`.
        precision: as for `capture`.
        graph: that the user captured from the module. Its options hold, and the arguments must agree with them, except
            for `fused_attention`.
        fused_attention: as for `capture`.

    Raises:
        InvalidInput: as `capture`, or the arguments differ from the options of the graph.
    """
    if graph is not None:
        _check_options(graph, split, precision)
        return cached_capture_for(module, example_inputs, graph, folder)
    origin = Origin(method="auto", split=tuple(split), precision=precision, fused_attention=fused_attention)
    entry = _entry(module, example_inputs, folder, origin)
    if entry and (known := read_entry(entry)):
        warn_of_unregistered_layers(module)
        return known
    made = capture_nodes(module, example_inputs, origin)
    # The capture of a model that export cannot trace warns. It is made again, so that the warning is repeated.
    if entry and made.graph.origin and made.graph.origin.method == "export":
        with suppress(OSError, InvalidInput):  # a folder that cannot be written only costs time
            write_entry(made, entry)
            if fused_attention and not made.graph.origin.fused_attention:  # It is the same without: no attention drops.
                other = _entry(module, example_inputs, folder, replace(origin, fused_attention=False))
                if other and not other.exists():
                    write_entry(made, other)
            keep_newest(entry.parent, MOST_ENTRIES)
    return made


def cached_capture_for(module: nn.Module, example_inputs: Inputs, graph: Graph, folder: Path | None) -> Captured:
    """Return the capture that a graph was made from, from the cache if it is there.

    Raises:
        InvalidInput: as `capture_for`.
    """
    made = graph.origin or Origin(method="auto")
    for fused in (made.fused_attention, True):  # Most graphs are the same with and without it.
        origin = Origin(method="auto", split=made.split, precision=made.precision or "fp32", fused_attention=fused)
        entry = _entry(module, example_inputs, folder, origin)
        if entry and (known := read_entry(entry)):
            with suppress(InvalidInput):  # a split that this model does not allow, as `capture_for` explains
                known = split_like(known, graph)
                if known.graph.fingerprint == graph.fingerprint:
                    return known
    return capture_for(module, graph)


def _check_options(graph: Graph, split: Sequence[str], precision: Precision) -> None:
    made = graph.origin or Origin(method="auto")
    if split and tuple(split) != made.split:
        given, captured = f"split={[*split]}", f"split={[*made.split]}"
    elif precision != (used := made.precision or "fp32"):
        given, captured = f"precision='{precision}'", f"precision='{used}'"
    else:
        return
    raise InvalidInput(
        f"{graph.name} was captured with {captured}, but {given} is asked for",
        where="graph",
        remedy=f"Capture it with {given}, or leave out the graph.",
    )


def _entry(module: nn.Module, example_inputs: Inputs, folder: Path | None, origin: Origin) -> Path | None:
    # None if there is no cache, or if no key is sure to tell this model from others.
    if folder is None:
        return None
    layout = read_layout(module, example_inputs)
    key = model_key(module, describe(name_inputs(layout, example_inputs)), replace(origin, parts=layout.parts))
    return folder / "captures" / key if key else None


def read_entry(entry: Path) -> Captured | None:
    """Return the capture in an entry of a cache; None if it is missing, or is damaged. A damaged one is removed."""
    if not entry.is_dir():
        return None
    try:
        captured = load_capture(entry / _CAPTURE, Graph.load(entry / _GRAPH))
        if captured is None:
            raise InvalidInput("belong to different models", where=f"{_GRAPH} and {_CAPTURE}")
        os.utime(entry)
    except (InvalidInput, OSError) as error:
        reason = " ".join(str(error).split())
        warn_user(f"a capture in the cache cannot be used and is made again: {reason}")
        shutil.rmtree(entry, ignore_errors=True)
        return None
    return captured


def write_entry(captured: Captured, entry: Path) -> None:
    """Write a capture as an entry of a cache. A capture that files cannot hold is not written.

    Raises:
        OSError: the folder cannot be written, or another process has just written this entry.
        InvalidInput: as `Graph.save`.
    """
    make_private(entry.parent)
    temporary = Path(mkdtemp(prefix="new-", dir=entry.parent))
    try:
        if save_capture(captured, temporary / _CAPTURE):
            captured.graph.save(temporary / _GRAPH)
            temporary.rename(entry)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
