"""How calls are made: what the options of a view come to for one method.

Invariant: each view and method has one `CallSpec`, so that "the same options" is one identity check a call, and the
options' message is built once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from slotmesh.client.calls.inherited import inherited_trace
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.traced_payload import TraceOf, current_trace, traced_encode, traced_payloads
from slotmesh.codec import (
    OCTET_STREAM,
    PROTOBUF,
    DecodeError,
    decoder,
    decoder_of_each,
    encode_arguments,
    encode_arguments_of_each,
)
from slotmesh.errors import Executed

PAYLOADS: Final = object()
"""In place of a type of results: payloads are handed out as they came, for who passes them on."""
EXECUTED_PAYLOADS: Final = object()
"""The same, each in a pair with the backend that executed the call; empty where the router has not said it."""

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")


class CallSpec:
    """All that calls of one method of one view share."""

    __slots__ = (
        "_streamed",
        "content_type",
        "decode",
        "decode_each",
        "encode",
        "endpoint",
        "group",
        "method",
        "options",
        "ordering_key",
        "queue",
        "stop_generation",
        "streaming",
        "tenant",
        "trace_of",
        "traced",
        "wanted",
        "wire",
        "wire_bytes",
    )

    def __init__(
        self, endpoint: str, method: str, options: ViewOptions, queue: CallQueue[Any], wanted: Any = Any
    ) -> None:
        self.endpoint = endpoint
        self.method = method
        self.options = options
        self.ordering_key = options.ordering_key
        self.tenant = options.tenant
        self.queue = queue
        """Where its calls wait their turn."""
        self.streaming = options.streaming
        """Whether a call's sink is a `CallValues`, in place of a future."""
        self._streamed: CallSpec | None = None
        self.wanted = wanted
        """Type of the results."""
        self.content_type = options.content_type
        self.stop_generation = queue.stop.generation if queue.stop is not None and options.stops else 0
        """Which calls of the lane fail after a failure; 0 for those that go on."""
        self.wire = options.to_wire(method, self.stop_generation)
        """Shared by all batches; never changed."""
        self.wire_bytes = self.wire.ByteSize()
        self.traced = options.traced or options.inherits
        """Whether payloads may say in which span their calls were made."""
        self.trace_of: TraceOf = inherited_trace if options.inherits else current_trace
        """The parent of calls that are made where it is called."""
        self.group = None if queue.groups is None else queue.groups.of(self.wire, (wanted, self.traced))
        """Of a lane's calls: the lanes with which they share batches."""
        self.encode: Callable[[tuple[Any, ...], Mapping[str, Any]], bytes] = self._encode
        """Raises EncodeError, a TypeError."""
        self.decode: Callable[[bytes], Any] | None = None
        """None where the payload is the result. Raises DecodeError."""
        self.decode_each: Callable[[list[bytes]], list[Any]] = list
        """As `decode`, for neighbours."""
        if wanted is PAYLOADS or wanted is EXECUTED_PAYLOADS:
            self.encode = self._encode_bytes
        elif self.content_type == OCTET_STREAM:
            self._decoder(decoder)  # refuses types that bytes cannot be decoded into
            self.encode = self._encode_bytes
        elif not options.reply:
            pass  # there is no result to decode
        elif self.content_type == PROTOBUF and wanted is Any:
            self.encode = self._refuse
        else:
            self.decode = self._decoder(decoder)
            self.decode_each = self._decoder(decoder_of_each)
        if self.traced:
            self.encode = traced_encode(self.encode, self.trace_of)

    def streamed(self) -> CallSpec:
        """The same, for calls whose values are taken one by one. In line with the others.

        Raises:
            TypeError: calls of this view have no results.
        """
        if self._streamed is None:
            if not self.options.reply:
                raise TypeError(f"{self.endpoint}.{self.method}: calls without a reply have no values to iterate over")
            options = replace(self.options, streaming=True)
            self._streamed = CallSpec(self.endpoint, self.method, options, self.queue, self.wanted)
        return self._streamed

    def renewed(self) -> CallSpec:
        """The same, for the generation of its lane that has begun."""
        return CallSpec(self.endpoint, self.method, self.options, self.queue, self.wanted)

    def encode_each(self, columns: tuple[Iterable[Any], ...]) -> list[bytes]:
        """The payloads of a call for each row of `columns`."""
        if self.content_type == PROTOBUF and self.wanted is Any and self.options.reply:
            self._refuse((), {})
        payloads = encode_arguments_of_each(self.content_type, columns)
        return traced_payloads(payloads, self.trace_of) if self.traced else payloads

    def undecodable(self, error: DecodeError) -> DecodeError:
        """The error of a result that is not what was asked for."""
        return DecodeError(
            f"the result of {self.endpoint}.{self.method} is not what was asked for: {error}", executed=Executed.YES
        )

    def _decoder(
        self, decoder_for: Callable[[str, Any], Callable[[PayloadT], ResultT]]
    ) -> Callable[[PayloadT], ResultT]:
        try:
            return decoder_for(self.content_type, self.wanted)
        except TypeError as error:
            raise TypeError(f"{self.endpoint}.{self.method} cannot return {self.wanted!r}: {error}") from None

    def _encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        return encode_arguments(self.content_type, args, kwargs)

    @staticmethod
    def _encode_bytes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        if len(args) == 1 and type(args[0]) is bytes and not kwargs:
            return args[0]
        return encode_arguments(OCTET_STREAM, args, kwargs)

    def _refuse(self, _args: tuple[Any, ...], _kwargs: Mapping[str, Any]) -> bytes:
        raise TypeError(
            f"results in {PROTOBUF} need the class of their message: "
            f"{self.endpoint}.{self.method}.returning(MessageClass)(...)"
        )
