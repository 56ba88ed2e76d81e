"""Texts that are read by rules of their own: tokens of slots, trace contexts, units, metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from router_service.shell.clients.unary import HandedMetadata
from slotmesh.calls.slot_tokens import SECRET_BYTES, format_token, parse_token, redacted
from slotmesh.calls.trace_context import TraceColumns, TraceContext, is_sampled, is_traceparent, unsampled
from slotmesh.units import parse_duration, parse_host_port, parse_size
from slotmesh.v1 import call_pb2
from tests.fuzz.source import Source

TRACEPARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REAL: Final = format_token("replica-1", "0" * 32, bytes(SECRET_BYTES))


@contextmanager
def slot_tokens() -> Iterator[Callable[[bytes], object]]:
    """What is read as a token is what would have been written: there is one way to write each."""

    def run(data: bytes) -> None:
        source = Source(data)
        text = REAL if source.below(2) else source.rest().decode("utf-8", "replace")
        for _ in range(source.below(4)):
            at = source.below(len(text) + 1)
            text = text[:at] + chr(source.byte()) + text[at + source.below(2) :]
        token = parse_token(text)
        if token is not None and format_token(*token) != text:
            raise AssertionError(f"{text!r} is read as {token!r}")
        if len(text) > 8 and text in redacted(text):
            raise AssertionError("a secret is shown")

    yield run


@contextmanager
def trace_contexts() -> Iterator[Callable[[bytes], object]]:
    def run(data: bytes) -> None:
        source = Source(data)
        starts = [source.integer() for _ in range(source.below(4))]
        chosen = [source.below(3) for _ in range(source.below(4) + 1)]
        parents = [TRACEPARENT, source.text(), source.rest().decode("latin1")]
        columns = TraceColumns(starts, [parents[each] for each in chosen[1:]], [parents[chosen[0]]])
        if columns.problem(8) is None:
            columns.by_id(range(8))
        for parent in parents:
            if is_traceparent(parent):
                is_sampled(TraceContext(unsampled(TraceContext(parent)).traceparent))

    yield run


@contextmanager
def metadata() -> Iterator[Callable[[bytes], object]]:
    """Metadata of a unary rpc, as a router hands it to handlers."""
    handed = HandedMetadata(("tenant", "id-bin"), with_traces=True)
    names = ("tenant", "id-bin", "traceparent", "tracestate", "authorization", "slotmesh-call", "grpc-timeout")

    def run(data: bytes) -> None:
        source = Source(data)
        said: list[tuple[str, str | bytes]] = []
        while source.left and len(said) < 8:
            name = source.choice(names)
            said.append((name, source.payload() if name.endswith("-bin") else source.text()))
        wire = call_pb2.CallOptions()
        handed.take_of(said, wire)
        if wire.ByteSize() > 64 * 1024:
            raise AssertionError(f"{wire.ByteSize()} bytes are handed on")

    yield run


@contextmanager
def units() -> Iterator[Callable[[bytes], object]]:
    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        for parse in (parse_duration, parse_size, parse_host_port):
            with suppress(ValueError):
                parse(text)

    yield run


TARGETS: Final = {
    "texts-slot-tokens": slot_tokens,
    "texts-trace-contexts": trace_contexts,
    "texts-metadata": metadata,
    "texts-units": units,
}
