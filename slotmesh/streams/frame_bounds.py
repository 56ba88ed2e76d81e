"""Bounds on the content of one frame, or of the request of a unary rpc, checked before it is parsed. Pure.

Purpose: two bytes of a frame can become a hundred in memory, and each element costs time in every loop over it; so
elements are counted in the bytes, and counting stops at the bound. It costs one step for each element of a large frame,
and nothing for small ones. Counting is done in steps, with other work between them.
Payloads in blocks are no elements: the code that cuts a block counts them.
Invariants: what passes has at most `MAX_ELEMENTS` elements in the frame, and in its direct parts (batches, ranges,
columns); in one of more than `LARGE_BYTES`, also in each of these; in a request at any depth. Bytes that are no message
pass: the parser refuses them.
Owner: functions for code that parses frames of a peer; `slotmesh/server/unary_requests.py` has the shapes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from slotmesh.streams.limits import MAX_ELEMENTS, MAX_FRAME_BYTES

SMALL_BYTES: Final = MAX_ELEMENTS
"""A smaller frame cannot hold too many elements: nothing in it is counted."""
MAX_FIELDS: Final = 2 * MAX_ELEMENTS
"""The same with fields that a message has once."""
LARGE_BYTES: Final = MAX_FRAME_BYTES
"""Frames are cut at this size, unless one payload alone is larger: so a larger one has few elements."""
MAX_COLUMN_BYTES: Final = LARGE_BYTES
"""Of all columns of numbers in one frame."""
STEP_FIELDS: Final = 4096
"""Counted in one step: some milliseconds."""

MAX_DEPTH: Final = 100
"""Nested messages: parsers of protobuf refuse more, so deeper ones are not counted."""
FIELDS_AN_ELEMENT: Final = 5
"""Of a request, at most: an entry of a JSON object has its key, its value and the kind of that."""
_NAMED_DEPTH: Final = 4
"""Deeper fields are reported under the name of the enclosing one: values may be nested a hundred times."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WHOLE: Final = "frame"
_HIGH: Final = bytes(range(128, 256))


class Field(NamedTuple):
    """One field of a message."""

    name: str
    fields: Mapping[int, Field]
    """The fields of its message, by number; empty if it is not a message, or if they are not counted."""
    is_repeated: bool = False
    is_column: bool = False
    """It is a packed column of numbers."""
    most_bytes: int = 0
    """The bytes that all of this field may have together; 0: no bound of its own."""


class Shape(NamedTuple):
    """The fields of a frame, or of a request."""

    whole: Mapping[int, Field]
    """Those that are counted in any frame."""
    deep: Mapping[int, Field]
    """Those that are counted in a large one."""
    advice: str = f"one frame has at most {MAX_ELEMENTS} elements in all; send several frames"
    """The message to the sender of too many elements."""
    most_fields: int = MAX_FIELDS


class TooMuch(NamedTuple):
    """The bound that a frame exceeds."""

    place: str
    """Where, as `calls.batches[].payloads`."""
    problem: str

    @property
    def field(self) -> str:
        """The field of the message: the first repeated one on the way there. Empty: the message as a whole."""
        return "" if self.place == _WHOLE else self.place.partition("[]")[0]


def too_much(raw: bytes, shape: Shape) -> Generator[None, None, TooMuch | None]:
    """The bound that the frame exceeds; None if it exceeds none, or is no message. In steps."""
    if len(raw) <= SMALL_BYTES:
        return None
    count = _Count(shape)
    try:
        return (yield from count.walk(raw, 0, len(raw), shape.deep if len(raw) > LARGE_BYTES else shape.whole, ""))
    except IndexError:  # a field is truncated
        return None


class _Count:
    """The counts of one frame so far."""

    __slots__ = ("advice", "bounded", "column_bytes", "depth", "elements", "fields", "most_fields", "step_ends")

    def __init__(self, shape: Shape) -> None:
        self.advice = shape.advice
        self.most_fields = shape.most_fields
        self.elements = self.fields = self.column_bytes = self.depth = 0
        self.bounded: dict[str, int] = {}
        """Bytes of the fields that have a bound of their own."""
        self.step_ends = STEP_FIELDS
        """The number of fields at which the current step ends."""

    def walk(
        self, raw: bytes, at: int, end: int, known: Mapping[int, Field], path: str
    ) -> Generator[None, None, TooMuch | None]:
        """Counts the fields between two offsets, and those inside them."""
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
                    return self._too_many(path, field)
            if fields > self.step_ends:
                if fields > self.most_fields:
                    return self._too_many(path, field)
                self.step_ends = min(fields + STEP_FIELDS, self.most_fields)
                yield
            kind = tag & 7
            if kind == _BYTES:
                size = raw[at]
                at += 1
                if size & 128:
                    size, at = _varint(raw, at - 1)
                if size and field is not None and (field.fields or field.is_column or field.most_bytes):
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
                return TooMuch(_ended(path), "holds a group, which no frame does")
        self.elements, self.fields = elements, fields
        return None

    def _inside(self, raw: bytes, at: int, end: int, field: Field, path: str) -> Generator[None, None, TooMuch | None]:
        name = f"{path}{field.name}" if self.depth < _NAMED_DEPTH else _ended(path)
        if field.most_bytes:
            size = self.bounded[name] = self.bounded.get(name, 0) + end - at
            if size > field.most_bytes:
                return TooMuch(name, f"at most {field.most_bytes} bytes in all, got {size}")
        if not field.is_column:
            if self.depth == MAX_DEPTH:
                return None
            self.depth += 1
            inside = f"{name}[]." if field.is_repeated else f"{name}."
            found = yield from self.walk(raw, at, end, field.fields, inside)
            self.depth -= 1
            return found
        self.column_bytes += end - at
        if self.column_bytes > MAX_COLUMN_BYTES:
            return TooMuch(name, f"the numbers of one frame have at most {MAX_COLUMN_BYTES} bytes; send several frames")
        self.elements += len(raw[at:end].translate(None, _HIGH))
        return self._too_many(path, field) if self.elements > MAX_ELEMENTS else None

    def _too_many(self, path: str, field: Field | None) -> TooMuch:
        name = "" if field is None or self.depth > _NAMED_DEPTH else field.name
        return TooMuch(_ended(f"{path}{name}"), self.advice)


def _ended(path: str) -> str:
    """The path without what would follow."""
    return path.removesuffix(".").removesuffix("[]") or _WHOLE


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number, and the offset behind it.

    Raises:
        IndexError: it is truncated or too long.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError(at)
