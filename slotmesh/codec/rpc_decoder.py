"""The arguments of a method that implements an rpc of a user's own proto: its request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotmesh.codec.arguments import ArgumentsDecoder
from slotmesh.codec.errors import DecodeError
from slotmesh.codec.signature import Signature
from slotmesh.codec.structured import NO_NAMED, Arguments
from slotmesh.errors import Reason
from slotmesh.wire.rpc_frames import RPC


class RpcDecoder(ArgumentsDecoder):
    """Decodes the requests of one rpc, each into a message of its class."""

    __slots__ = ()

    def __init__(self, signature: Signature, parse: Callable[[bytes], Any]) -> None:
        """`signature` is the method's."""
        super().__init__(signature)
        self._decoders = {RPC: lambda payload: (((parse(payload)),), NO_NAMED)}

    def of(self, content_type: str) -> Callable[[bytes], Arguments]:
        try:
            return self._decoders[content_type]
        except KeyError:
            raise DecodeError(
                "content_type: an rpc of its own proto takes one request, and is called at the router by that proto",
                reason=Reason.BAD_REQUEST,
                field="content_type",
            ) from None
