"""Payloads of many calls back to back, in one piece of memory, with their sizes beside it.

Purpose: code that passes payloads on makes no object of each. One is cut out where it is needed, and all of them are in
one pass without a step of Python for each.
Invariants: the sizes add up to the block. A part of a block is a copy of its own: it keeps no other payload alive.
Owner: the code that has parsed, or joined, the payloads. Blocks are never changed.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence, Sized
from io import BytesIO
from itertools import accumulate, chain
from typing import Final, cast, overload

SIZE_BYTES: Final = 4
"""Of each size, on the wire."""


class PayloadBlock(Sequence[bytes]):
    """Some payloads, in order."""

    __slots__ = ("_ends", "block", "sizes")

    def __init__(self, block: bytes, sizes: array[int]) -> None:
        """`sizes`: of each payload, bytes."""
        self.block = block
        self.sizes = sizes
        self._ends: list[int] | None = None
        """Where each payload ends in the block; once it was asked for."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.cut())

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> PayloadBlock: ...

    def __getitem__(self, at: int | slice) -> bytes | PayloadBlock:
        if isinstance(at, int):
            at = range(len(self.sizes))[at]
            return self.block[self._begin(at) : self._begin(at + 1)]
        lo, hi, step = at.indices(len(self.sizes))
        if step != 1:
            raise ValueError(f"a block is cut in steps of 1, not {step}")
        if lo == 0 and hi == len(self.sizes):
            return self
        return PayloadBlock(self.block[self._begin(lo) : self._begin(max(lo, hi))], self.sizes[lo:hi])

    def cut(self) -> list[bytes]:
        """All payloads, as objects of their own."""
        return list(map(BytesIO(self.block).read, self.sizes))

    def nbytes(self, lo: int, hi: int) -> int:
        """Bytes of the payloads from one place to another."""
        return self._begin(hi) - self._begin(lo)

    def _begin(self, at: int) -> int:
        """Where the payload at a place begins, or the last one ends."""
        if at <= 0:
            return 0
        if at >= len(self.sizes):
            return len(self.block)
        if self._ends is None:
            self._ends = list(accumulate(self.sizes))
        return self._ends[at - 1]


def block_of(payloads: Sequence[bytes]) -> PayloadBlock:
    """The payloads, back to back."""
    return PayloadBlock(b"".join(payloads), array("I", list(map(len, payloads))))


def concatenated(parts: Sequence[Sequence[Sized]]) -> Sequence[Sized]:
    """The payloads of all parts, in order: a block, where all parts are."""
    if len(parts) == 1:
        return parts[0]
    if all(type(part) is PayloadBlock for part in parts):
        blocks = cast("Sequence[PayloadBlock]", parts)
        sizes = array("I")
        for part in blocks:
            sizes += part.sizes
        return PayloadBlock(b"".join([part.block for part in blocks]), sizes)
    return list(chain.from_iterable(parts))


def nbytes_of(payloads: Sequence[Sized], lo: int = 0, hi: int | None = None) -> int:
    """Bytes of some payloads, from one place to another."""
    if hi is None:
        hi = len(payloads)
    if type(payloads) is PayloadBlock:
        return payloads.nbytes(lo, hi)
    return sum(map(len, payloads if hi - lo == len(payloads) else payloads[lo:hi]))


def largest_of(payloads: Sequence[Sized]) -> int:
    """Bytes of the largest payload; 0 where there is none."""
    return max(payloads.sizes if type(payloads) is PayloadBlock else map(len, payloads), default=0)


def sizes_to_wire(sizes: array[int]) -> bytes:
    """The sizes as they travel: four bytes each, the lowest first."""
    return _swapped(sizes).tobytes()


def sizes_from_wire(raw: bytes) -> array[int]:
    """The sizes, of which each has four bytes."""
    return _swapped(array("I", raw))


def _swapped(sizes: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return sizes
    sizes = sizes[:]  # pragma: no cover  # of machines that are rare
    sizes.byteswap()  # pragma: no cover
    return sizes  # pragma: no cover
