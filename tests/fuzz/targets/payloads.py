"""Payloads of every content type, as handlers and clients decode them: one by one, in columns, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from slotmesh.codec import (
    CONTENT_TYPES,
    JSON,
    MSGPACK,
    OCTET_STREAM,
    ArgumentsDecoder,
    ColumnsDecoder,
    DecodeError,
    EncodeError,
    Flaw,
    decode,
    decoder_of_each,
    encode,
)
from tests.fuzz.handlers import Fuzzed
from tests.fuzz.source import Source

HANDLER: Final = Fuzzed()
METHODS: Final[tuple[Callable[..., Any], ...]] = (HANDLER.__call__, HANDLER.numbers, HANDLER.array, HANDLER.rest)
BATCHED: Final[tuple[Callable[..., Any], ...]] = (HANDLER.items, HANDLER.rows)


@contextmanager
def arguments() -> Iterator[Callable[[bytes], object]]:
    decoders = [ArgumentsDecoder.for_handler(method) for method in METHODS]

    def run(data: bytes) -> None:
        source = Source(data)
        decoder, content_type = source.choice(decoders), source.choice((MSGPACK, JSON, OCTET_STREAM, ""))
        try:
            args, named = decoder.decode(content_type, source.rest())
        except DecodeError:
            return
        if not all(isinstance(name, str) for name in named):
            raise AssertionError(f"no arguments: {args!r}, {named!r}")

    yield run


@contextmanager
def columns() -> Iterator[Callable[[bytes], object]]:
    decoders = [
        ColumnsDecoder(ArgumentsDecoder.for_handler(method, batched=True), takes_bytes=False) for method in BATCHED
    ]

    def run(data: bytes) -> None:
        source = Source(data)
        decoder, content_type = source.choice(decoders), source.choice((MSGPACK, JSON, OCTET_STREAM))
        count, is_equal = 1 + source.below(20), source.below(2)
        size = source.byte()
        payloads = [source.take(size)] * count if is_equal else [source.take(size) for _ in range(count)]
        parts = list(decoder.split(content_type, payloads))
        if sum(1 if isinstance(part, Flaw) else part.size for part in parts) != count:
            raise AssertionError(f"{count} calls became {parts!r}")
        for part in parts:
            if not isinstance(part, Flaw):
                decoder.passed(part.args, part.named)

    yield run


@contextmanager
def values() -> Iterator[Callable[[bytes], object]]:
    """What is decoded can be encoded, and decoded again, with arrays in it, too."""

    def run(data: bytes) -> None:
        source = Source(data)
        content_type, payload = source.choice(CONTENT_TYPES), source.rest()
        try:
            if content_type not in {MSGPACK, JSON, OCTET_STREAM}:
                return
            value = decode(content_type, payload)
        except DecodeError:
            return
        try:
            again = encode(content_type, value)
        except EncodeError:
            return
        decode(content_type, again)

    yield run


@contextmanager
def values_of_each() -> Iterator[Callable[[bytes], object]]:
    kinds: tuple[Any, ...] = (Any, list[float], np.ndarray, dict[str, Any])
    decoders = [decoder_of_each(content_type, kind) for kind in kinds for content_type in (MSGPACK, JSON)]

    def run(data: bytes) -> None:
        source = Source(data)
        decode_each, count, size = source.choice(decoders), 1 + source.below(4), source.byte()
        try:
            decoded = decode_each([source.take(size) for _ in range(count)])
        except DecodeError:
            return
        if len(decoded) != count:
            raise AssertionError(f"{count} payloads became {len(decoded)}")

    yield run


TARGETS: Final = {
    "payloads-arguments": arguments,
    "payloads-columns": columns,
    "payloads-values": values,
    "payloads-values-of-each": values_of_each,
}
