"""How calls are made: what the options of a view come to for one method.

Invariant: each view and method has one `CallSpec`, so that "the same options" is one identity check a call, and the
options' message is built once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slotmesh.client.options import ViewOptions
from slotmesh.client.runs import CallQueue
from slotmesh.codec import (
    OCTET_STREAM,
    PROTOBUF,
    DecodeError,
    decoder,
    decoder_of_each,
    encode_arguments,
    encode_arguments_of_each,
)


class CallSpec:
    """All that calls of one method of one view share."""

    __slots__ = (
        "content_type",
        "decode",
        "decode_each",
        "encode",
        "endpoint",
        "method",
        "options",
        "queue",
        "wanted",
        "wire",
    )

    def __init__(self, endpoint: str, method: str, options: ViewOptions, queue: CallQueue, wanted: Any = Any) -> None:
        self.endpoint = endpoint
        self.method = method
        self.options = options
        self.queue = queue
        """Where its calls wait their turn."""
        self.wanted = wanted
        """Type of the results."""
        self.content_type = options.content_type
        self.wire = options.to_wire(method)
        """Shared by all batches; never changed."""
        self.encode: Callable[[tuple[Any, ...], Mapping[str, Any]], bytes] = self._encode
        """Raises EncodeError, a TypeError."""
        self.decode: Callable[[bytes], Any] | None = None
        """None where the payload is the result. Raises DecodeError."""
        self.decode_each: Callable[[list[bytes]], list[Any]] = list
        """As `decode`, for neighbours."""
        if self.content_type == OCTET_STREAM:
            decoder(OCTET_STREAM, wanted)  # says no to types that bytes never become
            self.encode = self._encode_bytes
        elif not options.reply:
            pass  # there is no result to decode
        elif self.content_type == PROTOBUF and wanted is Any:
            self.encode = self._refuse
        else:
            self.decode = decoder(self.content_type, wanted)
            self.decode_each = decoder_of_each(self.content_type, wanted)

    def encode_each(self, columns: tuple[Iterable[Any], ...]) -> list[bytes]:
        """The payloads of a call for each row of `columns`."""
        if self.content_type == PROTOBUF and self.wanted is Any and self.options.reply:
            self._refuse((), {})
        return encode_arguments_of_each(self.content_type, columns)

    def undecodable(self, error: DecodeError) -> DecodeError:
        """The error of a result that is not what was asked for."""
        return DecodeError(f"the result of {self.endpoint}.{self.method} is not what was asked for: {error}")

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
