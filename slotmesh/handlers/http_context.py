"""What a handler is told of the HTTP request that its call came by, and what it says of the answer.

Purpose: `slotmesh.context().http`. A handler that does not ask pays nothing.
Invariants: what cannot stand in an answer raises where it is set; what is set counts for the result that is returned,
or the first value that is yielded, and not for a failure, whose answer is a problem document.
Owner: the replica makes one for each context of such a call; tests of handlers may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from slotmesh.wire.http_heads import head_problem

HeaderPairs = tuple[tuple[str, str], ...]
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
PutHead = Callable[[int, HeaderPairs], None]
"""Takes status and headers. Raises RuntimeError where the answer has begun."""


class HttpContext:
    """One request, and its answer as far as the handler sets it."""

    __slots__ = (
        "_put",
        "address",
        "headers",
        "is_truncated",
        "method",
        "path",
        "query",
        "request_id",
        "response_headers",
        "response_status",
    )

    def __init__(
        self,
        method: str = "POST",
        path: str = "/",
        query: str = "",
        headers: Mapping[str, str] = _NO_HEADERS,
        *,
        request_id: str = "",
        address: str = "",
        is_truncated: bool = False,
        put: PutHead | None = None,
    ) -> None:
        """`put`: the replica's; None: what is set can only be looked at, as in a test."""
        self.method = method
        """GET, POST, PUT, PATCH, DELETE or HEAD."""
        self.path = path
        """As it was asked for, percent-encoded, without the query."""
        self.query = query
        """Behind the question mark, percent-encoded; empty: there is none."""
        self.headers = headers
        """Those that the front passes on (`--handler-headers`), by names in lower case, lines of one name together."""
        self.request_id = request_id
        """X-Request-ID."""
        self.address = address
        """Of the client, as far as the front knows it (`--http-trusted-proxies`)."""
        self.is_truncated = is_truncated
        """Headers, and then the query, were left out, as together they have more than 8 KiB."""
        self.response_status: int | None = None
        """What `respond` was given; None: nothing."""
        self.response_headers: HeaderPairs = ()
        self._put = put

    def respond(self, status: int = 200, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        """Sets status and headers of the answer, in place of what was set before. What is returned stays its body.

        Of a handler that yields: before the first value. 204 and 304 have no body.

        Raises:
            ValueError: a status outside of 200 to 599, a header that the front sets, or that cannot be sent.
            RuntimeError: the answer has begun, or there is none of that kind (WebSockets, `/v2`).
        """
        pairs: HeaderPairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        if problem := head_problem(status, pairs):
            raise ValueError(problem)
        if self._put is not None:
            self._put(status, pairs)
        self.response_status, self.response_headers = status, pairs

    def __repr__(self) -> str:
        return f"HttpContext({self.method} {self.path!r})"
