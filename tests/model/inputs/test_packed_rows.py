"""Documents of a flat mini-batch train in rows as they do in one row."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.model.inputs.packed_rows import packed_rows

LENGTHS = (5, 13, 7, 2, 9, 20, 4, 4, 11, 3, 6, 8, 17, 2, 1, 5)


def flat(lengths: tuple[int, ...] | list[int], **how: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    texts = [{"input_ids": torch.randint(1, 97, (length,)).tolist()} for length in lengths]
    return dict(DataCollatorWithFlattening(**how)(texts))


@pytest.mark.hypothesis
@given(lengths=st.lists(st.integers(1, 30), min_size=3, max_size=20), rows=st.integers(1, 3))
def test_every_document_is_whole_in_one_row(lengths: list[int], rows: int) -> None:
    batch = flat(lengths)
    packed = packed_rows(batch, rows)
    assert packed.keys() == {"input_ids", "labels", "position_ids"}
    length = packed["input_ids"].shape[1]
    assert all(tensor.shape == (rows, length) for tensor in packed.values())
    assert length % 8 == 0
    # Each row has at least what the fullest one would have without its shortest document (Graham's list scheduling).
    filled = (packed["input_ids"] > 0).sum(1)
    assert int(filled.max()) - int(filled.min()) <= max(lengths)
    found: list[tuple[int, ...]] = []
    for row in range(rows):
        starts = [*(packed["position_ids"][row] == 0).nonzero().flatten().tolist(), length]
        for start, end in pairwise(starts):
            assert packed["position_ids"][row, start:end].tolist() == list(range(end - start))
            if packed["input_ids"][row, start] > 0:
                found.append(tuple(packed["input_ids"][row, start:end].tolist()))
                assert packed["labels"][row, start] == -100
            else:
                assert (packed["labels"][row, start:end] == -100).all()
    tokens = batch["input_ids"][0].split(lengths)
    assert sorted(found) == sorted(tuple(each.tolist()) for each in tokens)


def test_a_llama_trains_as_on_the_flat_row() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=97, num_attention_heads=4, num_key_value_heads=2, **sizes)
    model: Any = LlamaForCausalLM(config).double()
    plain = copy.deepcopy(model)
    batch = flat(LENGTHS, return_flash_attn_kwargs=True)
    wanted = plain(**{name: batch[name] for name in ("input_ids", "position_ids", "labels")}, use_cache=False).loss
    wanted.backward()
    rows = packed_rows(batch, 8)
    assert rows["input_ids"].shape == (8, 24)
    llama = gp.from_transformers(model, rows)
    cluster = gp.Cluster.preset("local:2")
    plan = gp.plan(llama.graph, gp.estimate(llama.graph, cluster), cluster, batch_size=8, micro_batch=2)
    options = gp.PipelineOptions(captured=llama.captured)
    with gp.Pipeline(plan, llama.module, llama.loss_fn, options=options) as pipeline:
        assert pipeline.step(*llama.batch(rows)) == pytest.approx(wanted.item(), rel=1e-6)  # it is computed in float32
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-12)


def test_bounds_length_and_padding_can_be_given() -> None:
    tokens = torch.tensor([1, 2, 3, 4, 5, 6])
    batch = {"tokens": tokens, "targets": tokens + 10, "cu_seqlens": torch.tensor([0, 3, 5, 6]), "max_seqlen": 3}
    packed = packed_rows(batch, 2, length=5, padding={"targets": -1})
    assert packed["tokens"].tolist() == [[1, 2, 3, 0, 0], [4, 5, 6, 0, 0]]
    assert packed["targets"].tolist() == [[11, 12, 13, -1, -1], [14, 15, 16, -1, -1]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 0, 1]]


@pytest.mark.parametrize(
    ("changes", "rows", "message"),
    [
        ({}, 4, "has 3 documents for 4 rows"),
        ({"position_ids": None}, 2, "does not say where documents begin"),
        ({"position_ids": torch.arange(1, 7)}, 2, "do not begin with 0"),
        ({"cu_seqlens": torch.tensor([0, 3])}, 2, "the flat row has 6 tokens"),
        ({"attention_mask": torch.ones(6)}, 2, "position_ids keep documents apart"),
        ({"labels": torch.arange(6)}, 2, "in 3 of 3 documents"),
        ({"extra": torch.ones(5)}, 2, "has 5 tokens, and 'tokens' has 6"),
        ({"extra": 5}, 2, "no value for each token"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(changes: dict[str, Any], rows: int, message: str) -> None:
    batch = {"tokens": torch.arange(6), "position_ids": torch.tensor([0, 1, 2, 0, 1, 0])} | changes
    with pytest.raises(InvalidInput, match=message):
        packed_rows({name: value for name, value in batch.items() if value is not None}, rows)


def test_documents_longer_than_a_row_are_refused() -> None:
    with pytest.raises(InvalidInput, match="is 2, and the fullest of 2 rows has 3 tokens"):
        packed_rows({"tokens": torch.arange(6), "position_ids": torch.tensor([0, 1, 2, 0, 1, 0])}, 2, length=2)
