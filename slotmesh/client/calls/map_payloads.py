"""The payloads of a map, encoded a piece of its iterables at a time.

Purpose: a map may have more items than a client may hold. Its iterables are read as its calls find room.
Invariants: items are read once, in order. What a piece raises, it raises again for no later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from slotmesh.client.calls.buffer import BufferShare
from slotmesh.codec.arrays import is_array

PIECE_CALLS: Final = 4_096
"""Items of one piece at most."""
PIECE_BYTES: Final = 1024 * 1024
"""A piece has so many bytes, or one item, as far as its items are as large as those of the piece before."""
WHOLE_CALLS: Final = 1_024
"""A map of a list with so many items is one piece."""
_FIRST_CALLS: Final = 64
"""Items of the first piece, whose size is not known."""
_SLICED: Final = (list, tuple, range)

Encode = Callable[[tuple[Iterable[Any], ...]], list[bytes]]
Piece = tuple[list[bytes], int]
"""Payloads, which belong to who asks for them, and their bytes."""


def pieces_of(encode: Encode, columns: tuple[Iterable[Any], ...]) -> Iterator[Piece]:
    """The payloads of a map of these iterables.

    Raises, from the iterator: what `encode` does: EncodeError, and ValueError if the iterables differ in length.
    """
    if all(isinstance(each, _SLICED) and len(each) <= WHOLE_CALLS for each in columns) or not _are_iterable(columns):
        yield _piece(encode(columns))  # which says what is wrong
        return
    readers = [_reader_of(each) for each in columns]
    count = _FIRST_CALLS
    while any(map(len, items := tuple(read(count) for read in readers))):
        piece = payloads, nbytes = _piece(encode(items))
        yield piece
        count = max(1, min(PIECE_CALLS, count * 8, PIECE_BYTES * len(payloads) // (nbytes + 1)))


def first_pieces(pieces: Iterator[Piece], share: BufferShare) -> tuple[list[bytes], int, bool]:
    """The payloads of as many pieces as there is room for, and of one more; their bytes; whether that is all."""
    payloads, nbytes = next(pieces, ([], 0))
    while share.has_room(len(payloads), nbytes):
        piece = next(pieces, None)
        if piece is None:
            return payloads, nbytes, True
        payloads += piece[0]
        nbytes += piece[1]
    return payloads, nbytes, False


def _piece(payloads: list[bytes]) -> Piece:
    return payloads, sum(map(len, payloads))


def _are_iterable(columns: tuple[Iterable[Any], ...]) -> bool:
    for each in columns:
        try:
            iter(each)
        except TypeError:
            return False
    return True


def _reader_of(column: Iterable[Any]) -> Callable[[int], Any]:
    """Returns the next items of the column, up to a number of them."""
    if isinstance(column, _SLICED) or is_array(column):
        return _SliceReader(column).read
    items = iter(column)
    return lambda count: list(islice(items, count))


class _SliceReader:
    """Of what is sliced, and stays what it is: an array's rows are encoded together."""

    def __init__(self, column: Any) -> None:
        self._column = column
        self._at = 0

    def read(self, count: int) -> Any:
        start, self._at = self._at, self._at + count
        return self._column[start : self._at]
