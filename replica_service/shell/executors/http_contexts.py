"""`slotmesh.context().http`, made of what an HTTP front says of a call."""

from __future__ import annotations

from types import MappingProxyType

from google.protobuf.message import DecodeError

from replica_service.core.answer_heads import AnswerHeads
from slotmesh.handlers.http_context import HeaderPairs, HttpContext
from slotmesh.v1 import call_pb2


def http_context(facts: bytes, heads: AnswerHeads | None, run_id: int) -> HttpContext | None:
    """That of one call, of what its front says of the request; None where that is nothing that can be read."""
    try:
        said = call_pb2.HttpRequest.FromString(facts)
    except DecodeError:
        return None
    can_respond = said.can_respond

    def put(status: int, headers: HeaderPairs) -> None:
        if not can_respond or heads is None:
            raise RuntimeError("this call has no HTTP answer of its own: it came by a WebSocket, or by /v2")
        wire = call_pb2.HttpResponseHead(status=status)
        wire.headers.extend(call_pb2.HttpHeader(name=name, value=value) for name, value in headers)
        if not heads.put(run_id, wire.SerializeToString()):
            raise RuntimeError("the answer has begun: set status and headers before the first value is yielded")

    return HttpContext(
        said.method,
        said.path,
        said.query,
        MappingProxyType({it.name: it.value for it in said.headers}),
        request_id=said.request_id,
        address=said.address,
        is_truncated=said.truncated,
        put=put,
    )
