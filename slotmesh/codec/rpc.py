"""Requests and responses of users' own rpcs: messages of the classes that their generated module has.

Invariant: a handler returns a message of its rpc's class, or the call fails with an error that names the class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import EncodeError as ProtobufEncodeError
from google.protobuf.message import Message

from slotmesh.calls.result_envelopes import INITIAL, MESSAGE, TRAILERS, framed
from slotmesh.codec.content_types import DecodeError, EncodeError
from slotmesh.user_code import described, forget_call


class RpcReply(NamedTuple):
    """A response with metadata, or metadata alone."""

    message: bytes | None
    """Serialized; None: there is none."""
    initial: bytes = b""
    """Lines of metadata; empty: none."""
    trailers: bytes = b""

    def encoded(self) -> bytes:
        """As frames."""
        return b"".join(
            framed(kind, content)
            for kind, content in ((INITIAL, self.initial), (MESSAGE, self.message), (TRAILERS, self.trailers))
            if content or (kind == MESSAGE and content is not None)
        )


def parser_of(message_class: type[Message]) -> Callable[[bytes], Message]:
    """What makes a request of bytes. It raises DecodeError."""
    parse, name = message_class.FromString, message_class.DESCRIPTOR.full_name

    def parse_request(payload: bytes) -> Message:
        try:
            return parse(payload)
        except ProtobufDecodeError as error:
            raise DecodeError(f"payload: not a valid {name}") from error
        except BaseException as error:  # noqa: BLE001 - the class is the user's own
            message = f"payload: {name}: {described(error)}"
            forget_call(error)
        raise DecodeError(message)

    return parse_request


def serializer_of(message_class: type[Message]) -> Callable[[Any], bytes]:
    """What makes bytes of a response. It raises EncodeError."""
    name = message_class.DESCRIPTOR.full_name

    def serialize(response: Any) -> bytes:
        if not issubclass(type(response), message_class):
            raise EncodeError(f"the rpc returns {name}, got {type(response).__name__}")
        try:
            serialized: bytes = response.SerializeToString()
            return serialized
        except ProtobufEncodeError as error:
            raise EncodeError(f"{name}: {error}") from None

    return serialize


def encode_reply(value: Any) -> bytes:
    """What a method of an rpc gave, as frames. Raises EncodeError."""
    if type(value) is bytes:  # framed already
        return value
    if type(value) is RpcReply:
        return value.encoded()
    if issubclass(type(value), Message):
        try:
            return framed(MESSAGE, value.SerializeToString())
        except ProtobufEncodeError as error:
            raise EncodeError(f"{value.DESCRIPTOR.full_name}: {error}") from None
    raise EncodeError(f"an rpc returns a message, got {type(value).__name__}")
