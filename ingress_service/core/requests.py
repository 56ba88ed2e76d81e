"""The headers of a request, read once. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ingress_service.core.problems import refusal
from ingress_service.core.terms import PREFIX
from slotmesh.errors import Reason

_PLAIN = {
    b"content-type": "content_type",
    b"accept": "accept",
    b"authorization": "authorization",
    b"origin": "origin",
    b"host": "host",
    b"content-length": "content_length",
    b"access-control-request-method": "asks_method",
    b"access-control-request-headers": "asks_headers",
}


class RequestHeaders:
    """Those that the ingress looks at; empty where there are none."""

    __slots__ = (
        "accept",
        "asks_headers",
        "asks_method",
        "authorization",
        "content_length",
        "content_type",
        "host",
        "origin",
        "terms",
    )

    def __init__(self, lines: Iterable[tuple[bytes, bytes]]) -> None:
        """Names are in lower case."""
        self.content_type = self.accept = self.authorization = self.origin = self.host = b""
        self.content_length = self.asks_method = self.asks_headers = b""
        self.terms: list[tuple[bytes, bytes]] = []
        """What is said of the call."""
        for name, value in lines:
            if (attribute := _PLAIN.get(name)) is not None:
                before = getattr(self, attribute)
                # Of a list header that is repeated all count; of others the first one.
                setattr(
                    self, attribute, b"%b, %b" % (before, value) if before and name == b"accept" else before or value
                )
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
    def body_bytes(self) -> int:
        """What Content-Length says; 0 where there is none."""
        return int(self.content_length) if self.content_length.isdigit() and len(self.content_length) < 20 else 0


def unauthenticated(detail: str) -> Exception:
    """Who calls has shown no token, or none that can be one."""
    return refusal(401, detail, Reason.UNAUTHENTICATED, www_authenticate="Bearer")
