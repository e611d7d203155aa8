"""Buckets of tensors for collectives."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.run.device.buckets import buckets, flatten, unflatten


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([torch.float32, torch.float64])), max_size=8))
def test_buckets_hold_every_tensor_once_and_one_dtype_each(sizes: list[tuple[int, torch.dtype]]) -> None:
    tensors = [torch.full((size,), float(number), dtype=dtype) for number, (size, dtype) in enumerate(sizes)]
    expected = [tensor.clone() for tensor in tensors]
    found = list(buckets(tensors, limit_bytes=16))
    assert sorted(id(tensor) for bucket in found for tensor in bucket) == sorted(map(id, tensors))
    for bucket in found:
        assert len({tensor.dtype for tensor in bucket}) == 1
        flat = flatten(bucket, torch.device("cpu")) + 1
        unflatten(flat, bucket)
    assert all(torch.equal(a, b + 1) for a, b in zip(tensors, expected, strict=True))


def test_every_bucket_is_filled_up_to_the_limit() -> None:
    tensors = [torch.zeros(size) for size in (2, 2, 2, 2, 5, 1, 3)]
    found = [[tensor.numel() for tensor in bucket] for bucket in buckets(tensors, limit_bytes=16)]
    assert found == [[2, 2], [2, 2], [5], [1, 3]]
