"""Frames with large payloads, written and read with one copy of each. Pure: a message is what serializes itself.

Purpose: a protobuf message copies a payload that it is given, and copies it again into a buffer that grows by doubling
when it is serialized. In a process that returns freed memory to the kernel, as applications do, a megabyte costs a
millisecond there, most of it for pages that are mapped anew.
Invariant: the bytes are those of the message with its payloads, except for the order of fields, which has no meaning.
Owner: the writer of the stream; a frame is serialized once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar, cast

MIN_SPLICED_BYTES: Final = 128 * 1024
"""Of all payloads of a batch: fewer are copied in less time than they are spliced, and come from the heap."""
MAX_SPLICED: Final = 16
"""Payloads of a batch: each is a step here."""

_MAX_FIELDS: Final = 64
"""Of a message in which payloads are looked for."""
_LENGTH_DELIMITED: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""By wire type."""


class SplicedFrame:
    """A message, and payloads that belong into it."""

    __slots__ = ("_message", "_path", "_payloads")

    def __init__(self, message: Any, path: Sequence[int], payloads: Sequence[bytes | memoryview]) -> None:
        """`path`: numbers of fields, from the message to the payloads; each leads to the last message in that field."""
        self._message = message
        self._path = path
        self._payloads = payloads

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """The message as bytes, payloads included."""
        raw: bytes = self._message.SerializeToString()
        *path, number = self._path
        begin, end = 0, len(raw)
        levels: list[_Level] = []
        for each in path:
            levels.append([field for field in _fields(raw, begin, end) if field.number == each][-1])
            begin, end = levels[-1].start, levels[-1].stop
        inner: list[bytes | memoryview] = [raw[begin:end]]
        for payload in self._payloads:
            inner += (_varint(number << 3 | _LENGTH_DELIMITED), _varint(len(payload)), payload)
        return _replaced(raw, levels, inner)

    def whole(self) -> Any:
        """The message, payloads included."""
        return type(self._message).FromString(self.SerializeToString())

    def __getattr__(self, name: str) -> Any:
        """For code that reads the frame instead of writing it: slow, and right."""
        return getattr(self.whole(), name)


MessageT = TypeVar("MessageT")


def spliced(message: MessageT, path: Sequence[int], payloads: Sequence[bytes | memoryview]) -> MessageT:
    """A `SplicedFrame`, which stands for its message: the writer of the stream only serializes it."""
    return cast("MessageT", SplicedFrame(message, path, payloads))


def whole(frame: MessageT) -> MessageT:
    """The frame as a message, for a writer that takes messages only."""
    return cast("MessageT", frame.whole()) if isinstance(frame, SplicedFrame) else frame


def are_large(payloads: Sequence[Sized]) -> bool:
    """Whether payloads of a batch are better not in its message."""
    return len(payloads) <= MAX_SPLICED and sum(map(len, payloads)) >= MIN_SPLICED_BYTES


Paths = Sequence[Sequence[int]]
"""Where payloads may be in a message: for each place the numbers of fields, as of a `SplicedFrame`."""


class CutFrame(NamedTuple):
    """A message whose payloads are empty, and these payloads."""

    message: Any
    payloads: list[bytes]


def cut(raw: bytes, parse: Callable[[bytes], Any], paths: Paths) -> Any:
    """The message, or a `CutFrame` if it has large payloads: these are not copied into the message first.

    `paths`: only one of them may be in the message, and only one of each message in its field; others are parsed whole.
    What `parse` raises is raised.
    """
    if len(raw) >= MIN_SPLICED_BYTES:
        try:
            first = [field.number for field in islice(_fields(raw, 0, len(raw)), _MAX_FIELDS)]
            present = [path for path in paths if path[0] in first]
            found = _found(raw, present[0]) if len(present) == 1 else None
        except IndexError:  # it is malformed, which the parser reports
            found = None
        if found is not None:
            levels, fields = found
            inner: list[bytes | memoryview] = []
            done = levels[-1].start
            for field in fields:
                inner += (raw[done : field.at], b"\0")
                done = field.stop
            inner.append(raw[done : levels[-1].stop])
            payloads = [raw[field.start : field.stop] for field in fields]
            return CutFrame(parse(_replaced(raw, levels, inner)), payloads)
    return parse(raw)


class _Level(NamedTuple):
    """A length-delimited field: its number, and the offsets of its length, its beginning and its end."""

    number: int
    at: int
    start: int
    stop: int


def _found(raw: bytes, path: Sequence[int]) -> tuple[list[_Level], list[_Level]] | None:
    """The messages on the path, and its payloads; None if there are none, or too many."""
    levels: list[_Level] = []
    begin, end = 0, len(raw)
    for number in path:
        fields = list(islice(_fields(raw, begin, end), _MAX_FIELDS))
        if len(fields) == _MAX_FIELDS or any(field.stop > end for field in fields):
            return None
        found = [field for field in fields if field.number == number]
        if len(levels) == len(path) - 1:
            return (levels, found) if 0 < len(found) <= MAX_SPLICED else None
        if len(found) != 1:
            return None
        levels += found
        _, _, begin, end = found[0]
    return None


def _replaced(raw: bytes, levels: Sequence[_Level], inner: Sequence[bytes | memoryview]) -> bytes:
    """The bytes with another content of the innermost message."""
    added = sum(map(len, inner)) - (levels[-1].stop - levels[-1].start)
    lengths: list[bytes] = []
    for _, at, start, stop in reversed(levels):
        lengths.append(_varint(stop - start + added))
        added += len(lengths[-1]) - (start - at)
    parts: list[bytes | memoryview] = []
    done = 0
    for (_, at, start, _), length in zip(levels, reversed(lengths), strict=True):
        parts += (raw[done:at], length)
        done = start
    return b"".join((*parts, *inner, raw[levels[-1].stop :]))


def _fields(raw: bytes, at: int, end: int) -> Iterator[_Level]:
    """The length-delimited fields of a message. Raises IndexError if one is cut off, or is a group."""
    while at < end:
        tag, at = _read_varint(raw, at)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            size, start = _read_varint(raw, at)
            yield _Level(tag >> 3, at, start, start + size)
            at = start + size
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        elif not kind:
            _, at = _read_varint(raw, at)
        else:
            raise IndexError(at)  # a group, or nothing that exists


def _varint(value: int) -> bytes:
    return bytes(_groups(value))


def _groups(value: int) -> Iterable[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise IndexError(at)
