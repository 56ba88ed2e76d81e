"""The headers of a request, read once. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ingress_service.core.call_options import PREFIX
from ingress_service.core.peers import ForwardedHeader
from ingress_service.core.problems import refusal
from slotmesh.calls.trace_context import REQUEST_ID, TraceContext, is_request_id, is_traceparent, is_tracestate
from slotmesh.errors import Reason

HEADER: Final = REQUEST_ID.encode()


def given_id(value: bytes) -> str:
    """The id in X-Request-ID, given by the client or a proxy; empty if it is no id, as if there were no header."""
    text = value.decode("latin-1")
    return text if is_request_id(text) else ""


_PLAIN = {
    b"content-type": "content_type",
    b"accept": "accept",
    b"authorization": "authorization",
    b"origin": "origin",
    b"host": "host",
    b"content-length": "content_length",
    b"content-encoding": "content_encoding",
    b"sec-fetch-site": "fetch_site",
    b"sec-fetch-mode": "fetch_mode",
    b"access-control-request-method": "asks_method",
    b"access-control-request-headers": "asks_headers",
    b"traceparent": "traceparent",
    b"tracestate": "tracestate",
    b"x-forwarded-for": "x_forwarded_for",
    b"forwarded": "forwarded",
    HEADER: "x_request_id",
}


class RequestHeaders:
    """Those that the ingress looks at; empty where there are none."""

    __slots__ = (
        "accept",
        "asks_headers",
        "asks_method",
        "authorization",
        "content_encoding",
        "content_length",
        "content_type",
        "fetch_mode",
        "fetch_site",
        "forwarded",
        "host",
        "origin",
        "terms",
        "traceparent",
        "tracestate",
        "x_forwarded_for",
        "x_request_id",
    )

    def __init__(self, lines: Iterable[tuple[bytes, bytes]]) -> None:
        """Names are in lower case. Lines of one name are one list, so that one that can be no list is refused."""
        self.content_type = self.accept = self.authorization = self.origin = self.host = b""
        self.content_length = self.asks_method = self.asks_headers = self.traceparent = self.tracestate = b""
        self.content_encoding = self.fetch_site = self.fetch_mode = b""
        self.x_forwarded_for = self.forwarded = self.x_request_id = b""
        self.terms: list[tuple[bytes, bytes]] = []
        """Headers with options of the call."""
        for name, value in lines:
            if (attribute := _PLAIN.get(name)) is not None:
                before = getattr(self, attribute)
                setattr(self, attribute, b"%b, %b" % (before, value) if before else value)
            elif name.startswith(PREFIX):
                self.terms.append((name, value))
            elif name == b"idempotency-key":
                self.terms.append((PREFIX + name, value))

    @property
    def token(self) -> str:
        """Of `Authorization: Bearer TOKEN`; empty without the header. Raises RequestRefusal."""
        if not self.authorization:
            return ""
        scheme, _, token = self.authorization.strip().partition(b" ")
        if scheme.lower() != b"bearer" or not (token := token.strip()):
            raise unauthenticated("Authorization must be a bearer token")
        return token.decode("latin-1")

    @property
    def trace(self) -> TraceContext | None:
        """The span that the request was made in, by W3C Trace Context; None if there is none, or it is not valid."""
        if not self.traceparent:
            return None
        traceparent, tracestate = self.traceparent.decode("latin-1"), self.tracestate.decode("latin-1")
        if not is_traceparent(traceparent):
            return None
        return TraceContext(traceparent, tracestate if is_tracestate(tracestate) else "")

    def stated_by_proxy(self, header: ForwardedHeader) -> bytes:
        """The value of this header, by which a proxy states where the request comes from."""
        return self.forwarded if header is ForwardedHeader.FORWARDED else self.x_forwarded_for

    @property
    def body_bytes(self) -> int:
        """The number in Content-Length; 0 if there is none."""
        return int(self.content_length) if self.content_length.isdigit() and len(self.content_length) < 20 else 0


def unauthenticated(detail: str) -> Exception:
    """The caller has shown no token, or none that can be one."""
    return refusal(401, detail, Reason.UNAUTHENTICATED, www_authenticate="Bearer")
