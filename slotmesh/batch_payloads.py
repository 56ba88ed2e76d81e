"""Payloads in batches on the wire: one field each, or all in a block, to whom reads blocks.

The feature `blocks` says who does. What is written field by field is read so by everybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slotmesh.v1 import call_pb2, replica_service_pb2, router_service_pb2
from slotmesh.wire.limits import MAX_ELEMENTS
from slotmesh.wire.payload_block import SIZE_BYTES, PayloadBlock, block_of, sizes_from_wire, sizes_to_wire

MIN_BLOCK_CALLS: Final = 16
"""Fewer payloads are not worth a block."""

WireBatch = router_service_pb2.CallBatch | replica_service_pb2.RunBatch | call_pb2.ResultBatch


def count_of(batch: WireBatch) -> int:
    """How many payloads the batch has, in a block or not."""
    return len(batch.payload_sizes) // SIZE_BYTES or len(batch.payloads)


def mistake_of(batch: WireBatch) -> tuple[str, str] | None:
    """The field and what is wrong with it, of a block that cannot be read. It is counted before it is looked at."""
    raw = batch.payload_sizes
    if not raw:
        return ("block", "needs payload_sizes") if batch.block else None
    if len(raw) % SIZE_BYTES or len(raw) > SIZE_BYTES * MAX_ELEMENTS:
        return "payload_sizes", f"four bytes for each of at most {MAX_ELEMENTS} payloads, got {len(raw)} bytes"
    if batch.payloads or batch.chunked_sizes:
        return "block", "goes with neither payloads nor chunked_sizes"
    if (total := sum(sizes_from_wire(raw))) != len(batch.block):
        return "block", f"has {len(batch.block)} bytes, and payload_sizes say {total}"
    return None


def payloads_of(batch: WireBatch) -> Sequence[bytes]:
    """The payloads: a block where they came as one, which has no mistake, and a list otherwise."""
    if batch.payload_sizes:
        return PayloadBlock(batch.block, sizes_from_wire(batch.payload_sizes))
    return batch.payloads[:]


def list_of(batch: WireBatch) -> list[bytes]:
    """The payloads, one by one."""
    payloads = payloads_of(batch)
    return payloads.cut() if type(payloads) is PayloadBlock else list(payloads)


def write(batch: WireBatch, payloads: Sequence[bytes], *, as_block: bool) -> None:
    """Puts payloads into a batch that has none. `as_block`: the receiver reads blocks."""
    if type(payloads) is not PayloadBlock:
        if not as_block or len(payloads) < MIN_BLOCK_CALLS:
            batch.payloads.extend(payloads)
            return
        payloads = block_of(payloads)
    elif not as_block:
        batch.payloads.extend(payloads.cut())
        return
    batch.block = payloads.block
    batch.payload_sizes = sizes_to_wire(payloads.sizes)
