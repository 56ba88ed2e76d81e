"""Which pages of other origins may call, and the headers that their browsers get. Pure.

Invariants: a page of another origin calls only if the settings name it, whether its browser asks first or not, and
whether it sends an Origin or not: an image or a link of another site has none, and Sec-Fetch-Site. A request without
both comes from no page of a current browser.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ingress_service.core.requests import RequestHeaders
from slotmesh.spec.routes import HTTP_METHODS

OTHER_PAGE: Final = "pages of other origins may not call, nor make browsers call (--cors-origins)"
HeaderLines = list[tuple[bytes, bytes]]
_EXPOSED: Final = b"retry-after, allow, inference-header-content-length, x-request-id"
_MAX_AGE: Final = b"600"
_OWN_SITES: Final = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site: a page of the same origin, and the user (an address that was typed, a bookmark)."""


class Cors:
    """The rule of one ingress."""

    def __init__(self, origins: Collection[str]) -> None:
        """`*` allows all."""
        self._origins = frozenset(it.encode().lower() for it in origins)
        self._all = b"*" in self._origins

    def may_call(self, headers: RequestHeaders, *, runs_nothing: bool = False) -> bool:
        """Whether the page that sends this may. `runs_nothing`: links of other sites may lead there.

        Browsers let no page set Sec-Fetch-Site, and know the origin of the page behind a proxy that changes Host.
        """
        origin, site = headers.origin.lower(), headers.fetch_site.lower()
        if not (origin or site) or self._all or (origin and origin in self._origins) or site in _OWN_SITES:
            return True
        if site:
            return runs_nothing and headers.fetch_mode.lower() == b"navigate"
        _, _, authority = origin.partition(b"://")
        return bool(headers.host) and authority == headers.host.lower()

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
