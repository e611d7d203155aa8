"""Rows of whole documents, made of a flat mini-batch: texts that follow each other in one row of tokens.

A flat row, as a collator such as transformers' `DataCollatorWithFlattening` makes it, is one sample, and nothing can be
cut into micro-batches. Its documents can be arranged in rows of about the same length instead:

    tokens         a0 a1 a2 a3 a4 b0 b1 c0 c1 c2 d0        documents a, b, c, d
    two rows       a0 a1 a2 a3 a4 d0                       position_ids  0 1 2 3 4 0
                   b0 b1 c0 c1 c2 --                       position_ids  0 1 0 1 2 0
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphpipe.errors import InvalidInput

Documents = Sequence[NDArray[np.int64]]
"""The tokens of each document, by their places in the flat row."""

POSITIONS, LABELS = "position_ids", "labels"
_BOUNDS = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens")
_OF_FLAT_ROWS = {*_BOUNDS, "cu_seq_lens_k", "max_length_q", "max_length_k", "max_seqlen"}
"""What describes a flat row to kernels of attention, in the names of flash-attn and transformers."""
_IGNORED = -100
"""The label that cross-entropy leaves out, in torch and transformers."""


def packed_rows(
    batch: Mapping[str, Tensor | int],
    rows: int,
    *,
    length: int | None = None,
    pad_to_multiple_of: int = 8,
    padding: Mapping[str, float] | None = None,
) -> dict[str, Tensor]:
    """Return the documents of a flat mini-batch in rows of one length: samples of a pipeline.

    The longest document is taken first, by the row with the fewest tokens (Graham: Bounds on Multiprocessing Timing
    Anomalies. SIAM J. Appl. Math. 17, 1969), so rows have about the same number of tokens. In a row documents stay in
    their order, and what is left is padding, a document of its own.

    The model must keep the attention inside the documents of a row. Decoders of transformers do, if they get
    `position_ids` that begin anew, and no attention mask.

    Args:
        batch: values of each token, as tensors of [tokens, ...] or [1, tokens, ...]. Documents begin where
            `position_ids` are 0, or at `cu_seqlens` [documents + 1] (`cu_seq_lens_q` in transformers), which is left
            out of the rows with its kin.
        rows: the samples of the mini-batch.
        length: tokens of a row. By default the fullest row's.
        pad_to_multiple_of: the default length is rounded up to such a number.
        padding: the value of tokens that fill a row, by name: -100 for `labels`, otherwise 0.

    Returns: [rows, length, ...] by name, with `position_ids`.

    Raises:
        InvalidInput: no bounds of documents, tensors that differ in their tokens, fewer documents than rows, a length
            that the documents exceed, an attention mask, or a document whose first label counts.
    """
    values = _values_by_token(batch)
    documents = _documents(batch, values)
    if len(documents) < rows:
        raise InvalidInput(
            f"has {len(documents)} documents for {rows} rows",
            where="the flat mini-batch",
            remedy="Take a larger mini-batch, or fewer rows.",
        )
    _check_labels(values.get(LABELS), documents)
    chosen = _shared_out(documents, rows)
    fullest = max(map(len, chosen))
    wanted = -(-fullest // pad_to_multiple_of) * pad_to_multiple_of if length is None else length
    if fullest > wanted:
        raise InvalidInput(
            f"is {wanted}, and the fullest of {rows} rows has {fullest} tokens",
            where="length",
            remedy="Take longer rows, more of them, or a smaller mini-batch.",
        )
    fill = {LABELS: _IGNORED, **(padding or {})}
    packed = {name: _arranged(tensor, chosen, wanted, fill.get(name, 0)) for name, tensor in values.items()}
    return packed | {POSITIONS: _positions(documents, chosen, wanted, next(iter(values.values())).device)}


def _values_by_token(batch: Mapping[str, Tensor | int]) -> dict[str, Tensor]:
    """Return the tensors of [tokens, ...]."""
    if "attention_mask" in batch:
        raise InvalidInput(
            "hides where documents begin from models of transformers",
            where="input 'attention_mask'",
            remedy="Leave it out: position_ids keep documents apart.",
        )
    values: dict[str, Tensor] = {}
    for name, value in batch.items():
        if name in _OF_FLAT_ROWS:
            continue
        if not isinstance(value, Tensor) or not value.dim():
            raise InvalidInput(
                f"is {value!r}, which has no value for each token", where=f"input '{name}'", remedy="Leave it out."
            )
        values[name] = value[0] if value.dim() > 1 and len(value) == 1 else value
    if not values:
        raise InvalidInput("has no tensor", where="the flat mini-batch", remedy="Give tokens.")
    (first, tokens), *others = [(name, len(value)) for name, value in values.items()]
    for name, count in others:
        if count != tokens:
            raise InvalidInput(
                f"has {count} tokens, and '{first}' has {tokens}",
                where=f"input '{name}'",
                remedy="Give tensors of [tokens, ...] or [1, tokens, ...].",
            )
    return values


def _documents(batch: Mapping[str, Tensor | int], values: Mapping[str, Tensor]) -> Documents:
    tokens = len(next(iter(values.values())))
    given = next((batch[name] for name in _BOUNDS if name in batch), None)
    if isinstance(given, Tensor):
        bounds = given.flatten().tolist()
        if bounds[:1] != [0] or bounds[-1] != tokens or bounds != sorted(bounds):
            raise InvalidInput(
                f"are {bounds[:3]} ... {bounds[-1:]}, and the flat row has {tokens} tokens",
                where="cumulative lengths of documents",
                remedy="They begin with 0, rise, and end with the number of tokens.",
            )
    elif POSITIONS in values:
        starts = (values[POSITIONS] == 0).nonzero().flatten().tolist()
        if starts[:1] != [0]:
            remedy = "Begin each document with 0."
            raise InvalidInput("do not begin with 0", where=f"input '{POSITIONS}'", remedy=remedy)
        bounds = [*starts, tokens]
    else:
        raise InvalidInput(
            "does not say where documents begin",
            where="the flat mini-batch",
            remedy=f"Give '{POSITIONS}' that begin anew with each document, or '{_BOUNDS[0]}'.",
        )
    return [np.arange(start, end) for start, end in pairwise(bounds) if end > start]


def _check_labels(labels: Tensor | None, documents: Documents) -> None:
    # A model that shifts its labels would learn the first token of a document from the last one of another, which
    # depends on the row.
    if labels is None:
        return
    firsts = labels[torch.tensor([int(document[0]) for document in documents], device=labels.device)]
    if bool((firsts != _IGNORED).any()):
        raise InvalidInput(
            f"have a first token that counts in {int((firsts != _IGNORED).sum())} of {len(documents)} documents",
            where=f"input '{LABELS}'",
            remedy=f"Set the first label of each document to {_IGNORED}, as DataCollatorWithFlattening does. Labels "
            "that are shifted already need another name, such as 'targets', and a value in padding=.",
        )


def _shared_out(documents: Documents, rows: int) -> list[NDArray[np.int64]]:
    """Return the tokens of each row."""
    shares: list[list[int]] = [[] for _ in range(rows)]
    loads = np.zeros(rows, dtype=np.int64)
    for document in sorted(range(len(documents)), key=lambda each: -len(documents[each])):
        row = int(loads.argmin())
        shares[row].append(document)
        loads[row] += len(documents[document])
    return [np.concatenate([documents[each] for each in sorted(share)]) for share in shares]


def _arranged(values: Tensor, chosen: Documents, length: int, fill: float) -> Tensor:
    made = values.new_full((len(chosen), length, *values.shape[1:]), fill)
    for row, tokens in enumerate(chosen):
        made[row, : len(tokens)] = values[torch.from_numpy(tokens).to(values.device)]
    return made


def _positions(documents: Documents, chosen: Documents, length: int, device: torch.device) -> Tensor:
    inside = np.concatenate([np.arange(len(document)) for document in documents])
    made = np.stack([np.concatenate([inside[each], np.arange(length - len(each))]) for each in chosen])
    return torch.from_numpy(made).to(device)
