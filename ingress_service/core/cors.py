"""Which pages of other origins may call, and what browsers are told. Pure.

Invariants: a page of another origin calls only where the settings name it, whether its browser asks first or not; a
request without Origin comes from no page.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from slotmesh.spec.routes import HTTP_METHODS

HeaderLines = list[tuple[bytes, bytes]]
_EXPOSED: Final = b"retry-after, allow, inference-header-content-length, x-request-id"
_MAX_AGE: Final = b"600"


class Cors:
    """The rule of one ingress."""

    def __init__(self, origins: Collection[str]) -> None:
        """`*` allows all."""
        self._origins = frozenset(it.encode().lower() for it in origins)
        self._all = b"*" in self._origins

    def may_call(self, origin: bytes, host: bytes) -> bool:
        """Whether a page of this origin may; `host` is what its request is for."""
        if not origin or self._all or origin.lower() in self._origins:
            return True
        _, _, authority = origin.partition(b"://")
        return bool(host) and authority.lower() == host.lower()

    def lines(self, origin: bytes) -> HeaderLines:
        """Headers of an answer."""
        if not origin or not (self._all or origin.lower() in self._origins):
            return []
        shown = b"*" if self._all else origin
        return [
            (b"access-control-allow-origin", shown),
            (b"access-control-expose-headers", _EXPOSED),
            *([] if self._all else [(b"vary", b"origin")]),
        ]

    def preflight(self, origin: bytes, asked: bytes) -> HeaderLines:
        """Headers of the answer to a browser that asks; `asked` are the headers that it wants to send."""
        if not (allowed := self.lines(origin)):
            return []
        return [
            *allowed,
            (b"access-control-allow-methods", ", ".join(HTTP_METHODS).encode()),
            (b"access-control-allow-headers", asked[:1024] or b"content-type"),
            (b"access-control-max-age", _MAX_AGE),
        ]
