"""The blocks of the argument that a method's decorator names, found in a payload without decoding the rest of it.

Invariants: nothing behind the first `MAX_BYTES` of a payload is looked at, and at most `MAX_STEPS` values are passed
over, so a payload costs some milliseconds at most, which are returned as work. What is malformed, too far behind, or
neither text nor tokens has no blocks; no payload raises. The same text has the same blocks in each content type.
Pure functions.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from slotmesh.calls.prefix_hashes import BLOCK_BYTES, BLOCK_TOKENS, MAX_TOKEN, blocks_of_text, blocks_of_tokens
from slotmesh.streams.chunks import Announced, Payload, PayloadParts

MAX_BYTES: Final = 64 * 1024
MAX_STEPS: Final = 1_024
MAX_ARGUMENT_BLOCKS: Final = 256
"""16 KiB of text, or 4,096 tokens."""
STEPS_PER_BLOCK: Final = 4
"""Values that are passed over in the time of one block."""
NO_BLOCKS: Final[tuple[int, ...]] = ()
NOTHING_READ: Final = NO_BLOCKS, 1
"""The work is that of looking at the call."""
_OCTET_STREAM: Final = "application/octet-stream"
_JSON: Final = "application/json"
_MSGPACK: Final = "application/msgpack"


@dataclass(frozen=True, slots=True)
class PrefixArgument:
    """The argument whose beginning determines where calls of a method go."""

    name: str
    position: int
    """Among the positional arguments, from 0."""


def blocks_of_argument(
    payload: Payload | Announced, content_type: str, argument: PrefixArgument, most: int = MAX_ARGUMENT_BLOCKS
) -> tuple[tuple[int, ...], int]:
    """The hashes of at most `most` blocks that the argument begins with; none if it is not found. And the work.

    Work is counted in blocks that could have been hashed in that time.
    """
    if isinstance(payload, Announced) or most < 1:
        return NOTHING_READ
    head = payload.parts[0] if isinstance(payload, PayloadParts) and payload.parts else payload
    if not isinstance(head, bytes):
        return NOTHING_READ
    window = head[:MAX_BYTES]
    try:
        if content_type in ("", _OCTET_STREAM):
            blocks, end, steps = blocks_of_text(window, most), 0, MAX_STEPS
        elif content_type == _MSGPACK:
            at, steps = _in_msgpack(window, argument)
            blocks, end = _msgpack_value(window, at, most), at
        elif content_type == _JSON:
            at, steps = _in_json(window, argument)
            blocks, end = _json_value(window, at, most)
        else:
            return NOTHING_READ
    except (IndexError, ValueError):  # it ends too early, is malformed, or has no such argument
        blocks, end, steps = NO_BLOCKS, len(window), max(0, MAX_STEPS - len(window))
    return blocks, 1 + max(len(blocks), end // BLOCK_BYTES) + (MAX_STEPS - steps) // STEPS_PER_BLOCK


# -- MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md) ---------------------------------------------

_SIZED: Final = {
    **dict.fromkeys((0xC4, 0xD9), (1, 0)),
    **dict.fromkeys((0xC5, 0xDA), (2, 0)),
    **dict.fromkeys((0xC6, 0xDB), (4, 0)),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
}
"""Binary data, text and extensions: bytes of the length, and bytes that it does not count."""
_FIXED: Final = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
"""Bytes of other values behind their first one."""
_NESTED: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Arrays and maps: bytes of the length, and values of each of their items."""
_UNSIGNED: Final = rb"[\x00-\x7f]|\xcc.|\xcd..|\xce...."
_MSGPACK_TOKEN: Final = re.compile(_UNSIGNED, re.DOTALL)
_MSGPACK_TOKENS: Final = re.compile(rb"(?:%b){0,%d}+" % (_UNSIGNED, MAX_ARGUMENT_BLOCKS * BLOCK_TOKENS), re.DOTALL)


def _in_msgpack(data: bytes, argument: PrefixArgument) -> tuple[int, int]:
    """Where the argument begins, and what is left of the steps."""
    at, values, is_map = _items(data, 0)
    steps = MAX_STEPS
    if not is_map:
        if not 0 <= argument.position < values:
            raise ValueError("no such argument")
        for _ in range(argument.position):
            at, steps = _behind(data, at, steps)
        return at, steps
    name = argument.name.encode()
    for _ in range(values // 2):
        text = _text_at(data, at)
        at, steps = _behind(data, at, steps)
        if text is not None and data[text[0] : text[1]] == name:
            return at, steps
        at, steps = _behind(data, at, steps)
    raise ValueError("no such argument")


def _items(data: bytes, at: int) -> tuple[int, int, bool]:
    """Where the first value of an array or a map is, how many values it has, and whether it is a map."""
    first = data[at]
    if 0x80 <= first <= 0x9F:
        is_map = first < 0x90
        return at + 1, (first & 0x0F) * (2 if is_map else 1), is_map
    if first not in _NESTED:
        raise ValueError("neither array nor map")
    size, each = _NESTED[first]
    return at + 1 + size, _length(data, at + 1, size) * each, each == 2


def _length(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise IndexError(at)
    return int.from_bytes(data[at : at + size], "big")


def _text_at(data: bytes, at: int) -> tuple[int, int] | None:
    """Begin and end of text or binary data; None for other values."""
    first = data[at]
    if 0xA0 <= first <= 0xBF:
        return at + 1, at + 1 + (first & 0x1F)
    size, more = _SIZED.get(first, (0, 1))
    if more:
        return None
    begin = at + 1 + size
    return begin, begin + _length(data, at + 1, size)


def _behind(data: bytes, at: int, steps: int) -> tuple[int, int]:
    """Where the next value begins, and what is left of the steps."""
    left = 1
    while left:
        if steps <= 0:
            raise ValueError("too many values")
        steps -= 1
        left -= 1
        first = data[at]
        if first <= 0x7F or first >= 0xE0:
            at += 1
        elif 0x80 <= first <= 0x9F or first in _NESTED:
            at, values, _ = _items(data, at)
            left += values
        elif first in _FIXED:
            at += 1 + _FIXED[first]
        elif (text := _text_at(data, at)) is not None:
            at = text[1]
        else:
            size, more = _SIZED.get(first, (0, 0))
            if not size:
                raise ValueError("no value begins like this")
            at += 1 + size + more + _length(data, at + 1, size)
    return at, steps


def _msgpack_value(data: bytes, at: int, most: int) -> tuple[int, ...]:
    if (text := _text_at(data, at)) is not None:
        return blocks_of_text(data[text[0] : min(text[1], text[0] + most * BLOCK_BYTES)], most)
    at, values, is_map = _items(data, at)
    if is_map:
        return NO_BLOCKS
    found = _MSGPACK_TOKENS.match(data, at)
    end = at if found is None else found.end()
    each = _MSGPACK_TOKEN.findall(data, at, end)[: min(values, most * BLOCK_TOKENS)]
    return blocks_of_tokens([one[0] if len(one) == 1 else int.from_bytes(one[1:], "big") for one in each], most)


# -- JSON -----------------------------------------------------------------------------------------------------------

_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_TEXT: Final = re.compile(rb'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_ATOM: Final = re.compile(rb"[-+.0-9a-zA-Z]++")
_TOKENS: Final = re.compile(rb"[0-9, \t\r\n]*+")
_OPEN: Final = b"[{"
_CLOSE: Final = b"]}"


def _in_json(data: bytes, argument: PrefixArgument) -> tuple[int, int]:
    """Where the argument begins, and what is left of the steps."""
    at = _spaces(data, 0)
    kind = data[at]
    if kind not in _OPEN:
        raise ValueError("neither array nor object")
    name, steps, number = json.dumps(argument.name).encode(), MAX_STEPS, 0
    at = _spaces(data, at + 1)
    while data[at] not in _CLOSE:
        is_it = number == argument.position
        if kind == _OPEN[1]:
            end, steps = _behind_json(data, at, steps)
            is_it = data[at:end] == name
            at = _spaces(data, _past(data, _spaces(data, end), b":"))
        if is_it:
            return at, steps
        at, steps = _behind_json(data, at, steps)
        at = _spaces(data, at)
        if data[at] not in _CLOSE:
            at = _spaces(data, _past(data, at, b","))
        number += 1
    raise ValueError("no such argument")


def _spaces(data: bytes, at: int) -> int:
    found = _SPACE.match(data, at)
    return at if found is None else found.end()


def _past(data: bytes, at: int, mark: bytes) -> int:
    if data[at : at + 1] != mark:
        raise ValueError("malformed")
    return at + 1


def _behind_json(data: bytes, at: int, steps: int) -> tuple[int, int]:
    """Where the value ends, and what is left of the steps. Punctuation inside of it is not checked."""
    depth = 0
    while True:
        if steps <= 0:
            raise ValueError("too many values")
        steps -= 1
        mark = data[at]
        if mark in _OPEN:
            depth, at = depth + 1, at + 1
        elif mark in _CLOSE:
            depth, at = depth - 1, at + 1
        elif mark in b",:" and depth:
            at += 1
        else:
            found = (_STRING if mark == 0x22 else _ATOM).match(data, at)
            if found is None:
                raise ValueError("malformed")
            at = found.end()
        if depth <= 0:
            return at, steps
        at = _spaces(data, at)


def _json_value(data: bytes, at: int, most: int) -> tuple[tuple[int, ...], int]:
    """The blocks of the value, and where what was read of it ends."""
    if data[at] == 0x22:
        found = _TEXT.match(data, at + 1)
        raw = b"" if found is None else found.group()
        # The end may be in the middle of a character, or of a pair of surrogates.
        text: str = json.loads(f'"{raw.decode(errors="ignore")}"')
        return blocks_of_text(text.encode(errors="ignore"), most), at + len(raw)
    if data[at] != _OPEN[0]:
        return NO_BLOCKS, at
    found = _TOKENS.match(data, at + 1)
    raw = b"" if found is None else found.group()
    end = at + len(raw)
    if data[at + 1 + len(raw) : at + 2 + len(raw)] != b"]":
        raw = raw[: max(raw.rfind(b","), 0)]  # the last one may go on, or be no integer
    tokens: list[int] = json.loads(b"[%b]" % raw)[: most * BLOCK_TOKENS]
    wrong = next((number for number, token in enumerate(tokens) if token > MAX_TOKEN), len(tokens))
    return blocks_of_tokens(tokens[:wrong], most), end
