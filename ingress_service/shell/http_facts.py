"""What handlers are told of requests, and what they say of answers: the messages of the mesh that carry both.

Invariants: headers go on where the settings name them, and a token never; what does not fit is left out, and that is
said; the mark by which heads of answers are found is drawn anew for each process, and shown to routers and replicas
only.
Owner: the app.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from ingress_service.core.response_heads import PLAIN, ResponseHead, response_head
from slotmesh.v1 import call_pb2
from slotmesh.wire.http_heads import MIN_MARK_BYTES, split_head
from slotmesh.wire.trace_context import MAX_HTTP_BYTES

MARK: Final = secrets.token_bytes(MIN_MARK_BYTES)


class HttpFacts:
    """Makes what is said of requests."""

    def __init__(self, names: Collection[str]) -> None:
        """`names`: of the headers that handlers get, in lower case."""
        self._names = frozenset(it.encode() for it in names)

    def of(
        self, scope: Mapping[str, Any], request_id: str, address: str, *, method: str = "", can_respond: bool
    ) -> bytes:
        """Of one request. `method`: where it is not that of the scope."""
        wire = call_pb2.HttpRequest(
            method=method or scope["method"],
            path=scope["raw_path"].decode("latin-1"),
            query=scope["query_string"].decode("latin-1"),
            request_id=request_id,
            address=address,
            can_respond=can_respond,
        )
        for name, value in self._chosen(scope["headers"]).items():
            wire.headers.add(name=name.decode("latin-1"), value=value.decode("latin-1"))
        facts = wire.SerializeToString()
        if len(facts) <= MAX_HTTP_BYTES:
            return facts
        wire.truncated = True
        wire.ClearField("headers")
        for field in ("query", "path"):
            if wire.ByteSize() > MAX_HTTP_BYTES:
                wire.ClearField(field)
        return wire.SerializeToString()

    def _chosen(self, lines: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        chosen: dict[bytes, bytes] = {}
        names = self._names
        for name, value in lines:
            if name in names:
                before = chosen.get(name)
                separator = b"; " if name == b"cookie" else b", "
                chosen[name] = value if before is None else before + separator + value
        return chosen


def head_of(result: bytes) -> tuple[bytes, ResponseHead]:
    """A result, and what its handler has set for the answer. Raises RequestRefusal where that cannot be sent."""
    if not result.endswith(MARK):
        return result, PLAIN
    result, head = split_head(result, MARK)
    if head is None:
        return result, PLAIN
    try:
        wire = call_pb2.HttpResponseHead.FromString(head)
    except DecodeError:
        return result, PLAIN
    return result, response_head(wire.status, [(it.name, it.value) for it in wire.headers])
