"""Batches of calls and of results on the wire: their payloads and their ids.

Ids that are consecutive, as most are, travel as a range: one by one they cost as much as their payloads. Payloads may
be joined into one block; of clients only those with the feature `blocks` read blocks of results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, cast

from slotmesh.calls.id_ranges import Range, ranges_of
from slotmesh.calls.payload_block import SIZE_BYTES, PayloadBlock, block_of, largest_of, sizes_from_wire, sizes_to_wire
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.chunks import Payload, fits_whole
from slotmesh.streams.limits import CHUNK_BYTES, MAX_ELEMENTS, MAX_FRAME_BYTES
from slotmesh.streams.spliced_frames import are_large
from slotmesh.v1 import call_pb2, router_service_pb2

MIN_BLOCK_CALLS: Final = 16
"""Fewer payloads are not worth a block."""

CallsBatch = router_service_pb2.CallBatch | replica_service_pb2.RunBatch
WireBatch = CallsBatch | call_pb2.ResultBatch


def count_of(batch: WireBatch) -> int:
    """How many payloads the batch has, in a block or not."""
    return len(batch.payload_sizes) // SIZE_BYTES or len(batch.payloads)


def block_problem(batch: WireBatch) -> tuple[str, str] | None:
    """Why the block of a batch cannot be read: the field and the problem. None if it can, or if there is no block."""
    raw = batch.payload_sizes
    if not raw:
        return ("block", "needs payload_sizes") if batch.block else None
    if len(raw) % SIZE_BYTES or len(raw) > SIZE_BYTES * MAX_ELEMENTS:
        return "payload_sizes", f"four bytes for each of at most {MAX_ELEMENTS} payloads, got {len(raw)} bytes"
    if batch.payloads or batch.chunked_sizes:
        return "block", "goes with neither payloads nor chunked_sizes"
    if (total := sum(sizes_from_wire(raw))) != len(batch.block):
        return "block", f"has {len(batch.block)} bytes, and the sum of payload_sizes is {total}"
    return None


def payloads_of(batch: WireBatch) -> Sequence[bytes]:
    """The payloads: a block if they arrived as one, whose sizes must have been checked, a list otherwise."""
    if batch.payload_sizes:
        return PayloadBlock(batch.block, sizes_from_wire(batch.payload_sizes))
    return batch.payloads[:]


def list_of(batch: WireBatch) -> list[bytes]:
    """The payloads, one by one."""
    payloads = payloads_of(batch)
    return payloads.cut() if type(payloads) is PayloadBlock else list(payloads)


def write(batch: WireBatch, payloads: Sequence[bytes], *, as_block: bool) -> None:
    """Puts payloads into an empty batch. `as_block`: the receiver reads blocks."""
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


class FramePayloads:
    """The payloads of one frame of calls: in their batches, spliced into the only batch, or in chunks behind the frame.

    Owner: the writer of the frame.
    """

    __slots__ = ("_is_only", "_room", "beside")

    def __init__(self, batches: int) -> None:
        """`batches`: how many the frame has."""
        self._is_only = batches == 1
        self._room = MAX_FRAME_BYTES
        """Bytes that payloads larger than a chunk may still take."""
        self.beside: Sequence[bytes] = ()
        """To be spliced into the only batch."""

    def put(
        self, batch: CallsBatch, payloads: Sequence[Payload], *, as_block: bool, most_bytes: int | None = None
    ) -> Sequence[int]:
        """Adds the payloads of an empty batch. Returns the places of those that follow in chunks.

        `as_block`: they may be joined. `most_bytes`: none has more, if that is known.
        """
        sizes: list[int] = []
        if (most_bytes is None or most_bytes > CHUNK_BYTES) and largest_of(payloads) > CHUNK_BYTES:
            for payload in payloads:
                size = len(payload)
                is_whole = fits_whole(payload, self._room)
                sizes.append(0 if is_whole else size)
                if is_whole and size > CHUNK_BYTES:
                    self._room -= size
        if any(sizes):
            batch.chunked_sizes.extend(sizes)
            whole = (b"" if size else payload for payload, size in zip(payloads, sizes, strict=True))
            batch.payloads.extend(cast("Iterable[bytes]", whole))
            return [at for at, size in enumerate(sizes) if size]
        here = cast("Sequence[bytes]", payloads)  # what has parts is larger than a chunk
        if self._is_only and type(here) is not PayloadBlock and are_large(here):
            self.beside = here
        else:
            write(batch, here, as_block=as_block)
        return ()


def ranges_from_wire(ranges: Iterable[call_pb2.IdRange]) -> list[Range]:
    """The ranges as received: in any order, and some may end before they begin."""
    return [(each.first, each.last) for each in ranges]


def ids_from_wire(ranges: Iterable[call_pb2.IdRange]) -> list[int]:
    """The ids in these ranges. A few bytes can name very many: check the number first."""
    return list(chain.from_iterable(range(each.first, each.last + 1) for each in ranges))


def ranges_to_wire(ranges: Iterable[Range]) -> list[call_pb2.IdRange]:
    """The same ranges."""
    return [call_pb2.IdRange(first=first, last=last) for first, last in ranges]


def ids_to_wire(ids: Sequence[int]) -> list[call_pb2.IdRange]:
    """The ids as ranges, in their order; consecutive ids share one."""
    if isinstance(ids, range) or len(ids) == 1:  # mostly it is one of these
        return [call_pb2.IdRange(first=ids[0], last=ids[-1])] if ids else []
    return ranges_to_wire(ranges_of(ids))


def ids_of_results(batch: call_pb2.ResultBatch) -> Sequence[int]:
    """The ids of the results, parallel to the payloads if the sender complies with the protocol."""
    first = batch.first_call_id
    return range(first, first + count_of(batch)) if first else batch.call_ids[:]


def write_ids(batch: call_pb2.ResultBatch, ids: Sequence[int]) -> None:
    """Sets the ids of the results."""
    if isinstance(ids, range):
        batch.first_call_id = ids.start
    else:
        batch.call_ids.extend(ids)


def errors_to_wire(ids: Sequence[int], failure: call_pb2.Failure) -> call_pb2.CallErrors:
    """Calls with the same failure."""
    return call_pb2.CallErrors(calls=ids_to_wire(ids), failure=failure)
