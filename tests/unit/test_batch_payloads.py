"""Payloads of a batch are the same, in a block or one by one; what cannot be read is told by its field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.calls.payload_block import PayloadBlock, block_of
from slotmesh.convert.batches import MIN_BLOCK_CALLS, block_problem, count_of, list_of, payloads_of, write
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import MAX_ELEMENTS
from slotmesh.v1 import call_pb2, router_service_pb2

BATCHES: list[Any] = [router_service_pb2.CallBatch, replica_service_pb2.RunBatch, call_pb2.ResultBatch]


@pytest.mark.parametrize("kind", BATCHES)
@given(payloads=st.lists(st.binary(max_size=5), max_size=40), as_block=st.booleans(), is_block=st.booleans())
def test_payloads_are_those_that_were_written(kind: Any, payloads: list[bytes], as_block: bool, is_block: bool) -> None:
    batch = kind()
    write(batch, block_of(payloads) if is_block else payloads, as_block=as_block)
    received = kind.FromString(batch.SerializeToString())
    assert block_problem(received) is None
    assert list_of(received) == [*payloads_of(received)] == payloads
    assert count_of(received) == len(payloads)
    is_one = as_block and len(payloads) > 0 and (is_block or len(payloads) >= MIN_BLOCK_CALLS)
    assert isinstance(payloads_of(received), PayloadBlock) is is_one


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"block": b"abc"}, "block"),
        ({"payload_sizes": b"\1\0\0"}, "payload_sizes"),
        ({"block": b"abc", "payload_sizes": b"\2\0\0\0"}, "block"),
        ({"block": b"abc", "payload_sizes": b"\4\0\0\0"}, "block"),
        ({"block": b"abc", "payload_sizes": b"\3\0\0\0", "payloads": [b"x"]}, "block"),
        ({"block": b"abc", "payload_sizes": b"\3\0\0\0", "chunked_sizes": [1]}, "block"),
        ({"payload_sizes": b"\0" * 4 * (MAX_ELEMENTS + 1)}, "payload_sizes"),
    ],
)
@pytest.mark.parametrize("kind", BATCHES)
def test_what_cannot_be_read_is_told(kind: Any, fields: dict[str, Any], told: str) -> None:
    mistake = block_problem(kind(**fields))
    assert mistake is not None
    assert mistake[0] == told
