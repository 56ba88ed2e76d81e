"""How much one frame may hold, checked before it is parsed.

Purpose: two bytes of a frame can become a hundred of memory, and each element costs time in every loop over it; so
elements are counted in the bytes, and the counting ends at the bound. The cost is once an element of a frame that is
large, and nothing for small ones. Counting goes in steps, with other work between them.
Payloads in blocks are no elements: whoever cuts a block counts them.
Invariants: what passes has at most `MAX_ELEMENTS` elements in the frame, and in what it consists of directly (batches,
ranges, columns); in one of more than `LARGE_BYTES`, also in each of these. Bytes that are no message pass: the parser
refuses them.
Owner: pure functions of bytes, for code that parses frames of a peer; `slotmesh/runtime/frame_shapes.py` has the
shapes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from slotmesh.wire.limits import MAX_ELEMENTS, MAX_FRAME_BYTES

SMALL_BYTES: Final = MAX_ELEMENTS
"""No frame of this size can hold too many elements: nothing in it need be counted."""
MAX_FIELDS: Final = 2 * MAX_ELEMENTS
"""The same with fields that a message has once."""
LARGE_BYTES: Final = MAX_FRAME_BYTES
"""Frames are cut at this size, unless one payload alone is larger: so one beyond it has few elements."""
MAX_COLUMN_BYTES: Final = LARGE_BYTES
"""Of all columns of numbers in one frame."""
STEP_FIELDS: Final = 4096
"""That are counted at a time: some milliseconds."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_HIGH: Final = bytes(range(128, 256))


class Field(NamedTuple):
    """What is known of a field of a message."""

    name: str
    fields: Mapping[int, Field]
    """The fields of the message that it holds, by number; empty where it holds none, or where these are not counted."""
    is_repeated: bool = False
    is_column: bool = False
    """It holds numbers in a row."""


class Shape(NamedTuple):
    """The fields of a frame."""

    whole: Mapping[int, Field]
    """As far as they are counted in any frame."""
    deep: Mapping[int, Field]
    """The same, in a large one."""


class TooMuch(NamedTuple):
    """The bound that a frame passes."""

    field: str
    """Where, as `calls.batches`."""
    problem: str


def too_much(raw: bytes, shape: Shape) -> Generator[None, None, TooMuch | None]:
    """Which bound the frame passes; None where it keeps to all of them, or is no message. In steps."""
    if len(raw) <= SMALL_BYTES:
        return None
    count = _Count()
    try:
        return (yield from count.walk(raw, 0, len(raw), shape.deep if len(raw) > LARGE_BYTES else shape.whole, ""))
    except IndexError:  # a field has no end
        return None


class _Count:
    """What was counted so far in one frame."""

    __slots__ = ("column_bytes", "elements", "fields", "step_ends")

    def __init__(self) -> None:
        self.elements = self.fields = self.column_bytes = 0
        self.step_ends = STEP_FIELDS
        """How many fields are counted by then."""

    def walk(
        self, raw: bytes, at: int, end: int, known: Mapping[int, Field], path: str
    ) -> Generator[None, None, TooMuch | None]:
        """Counts the fields between two places, and those inside them."""
        elements, fields = self.elements, self.fields
        while at < end:
            tag = raw[at]
            at += 1
            if tag & 128:
                tag, at = _varint(raw, at - 1)
            field = known.get(tag >> 3)
            fields += 1
            if field is None or field.is_repeated:
                elements += 1
                if elements > MAX_ELEMENTS:
                    return _too_many(path, field)
            if fields > self.step_ends:
                if fields > MAX_FIELDS:
                    return _too_many(path, field)
                self.step_ends = min(fields + STEP_FIELDS, MAX_FIELDS)
                yield
            kind = tag & 7
            if kind == _BYTES:
                size = raw[at]
                at += 1
                if size & 128:
                    size, at = _varint(raw, at - 1)
                if size and field is not None and (field.fields or field.is_column):
                    self.elements, self.fields = elements, fields
                    if found := (yield from self._inside(raw, at, min(at + size, end), field, path)):
                        return found
                    elements, fields = self.elements, self.fields
                at += size
            elif kind == _VARINT:
                _, at = _varint(raw, at) if raw[at] & 128 else (0, at + 1)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:
                return TooMuch(path.rstrip(".") or "frame", "holds a group, which no frame does")
        self.elements, self.fields = elements, fields
        return None

    def _inside(self, raw: bytes, at: int, end: int, field: Field, path: str) -> Generator[None, None, TooMuch | None]:
        name = f"{path}{field.name}"
        if not field.is_column:
            return (yield from self.walk(raw, at, end, field.fields, f"{name}."))
        self.column_bytes += end - at
        if self.column_bytes > MAX_COLUMN_BYTES:
            return TooMuch(name, f"the numbers of one frame have at most {MAX_COLUMN_BYTES} bytes; send several frames")
        self.elements += len(raw[at:end].translate(None, _HIGH))
        return _too_many(path, field) if self.elements > MAX_ELEMENTS else None


def _too_many(path: str, field: Field | None) -> TooMuch:
    name = f"{path}{field.name}" if field is not None else path.rstrip(".") or "frame"
    return TooMuch(name, f"one frame has at most {MAX_ELEMENTS} elements in all; send several frames")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends.

    Raises:
        IndexError: it does not end where a number has to.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError(at)
