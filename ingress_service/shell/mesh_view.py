"""What every door of the ingress asks of the mesh: which routes there are, as whom to call, with which stream.

Owner: the app, which changes `table` when routes have changed. Requests, WebSockets, inferences and pages read it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from ingress_service.core.arguments import Schemas
from ingress_service.core.peers import PeerAddresses
from ingress_service.core.problems import RequestRefusal, refusal
from ingress_service.core.request_bound import BUSY_RETRY_S, RequestBound, Requester
from ingress_service.core.requests import RequestHeaders, unauthenticated
from ingress_service.core.route_table import Matched, RouteTable
from ingress_service.shell.callers import HttpCaller, HttpCallers, OpenedStream
from ingress_service.shell.described import Descriptions
from ingress_service.shell.token_trials import TokenTrials
from slotmesh.errors import Reason, SlotmeshError

_FORGETTABLE: Final = frozenset({Reason.ENDPOINT_NOT_FOUND, Reason.PERMISSION_DENIED, Reason.UNAUTHENTICATED})


class Visitor:
    """Whoever has made a request, as far as its headers and its connection say it."""

    __slots__ = ("address", "caller", "refusal", "token", "who")

    def __init__(self, address: str, token: str, caller: HttpCaller | None, refusal: Exception | None = None) -> None:
        self.address = address
        """That it counts under."""
        self.token = token
        """Empty: it has shown none."""
        self.caller = caller
        """As whom the mesh is called; None: not known yet, as its token is new here, or nobody."""
        self.refusal = refusal
        """Why it is nobody: what needs no caller is answered all the same, as what browsers ask before a request."""
        self.who: Requester = caller.number if token and caller is not None else address
        """Under which name its requests, bodies and calls are counted."""


class MeshView:
    """The mesh, as requests see it."""

    def __init__(
        self,
        callers: HttpCallers,
        described: Descriptions,
        trials: TokenTrials,
        requests: RequestBound,
        peers: PeerAddresses,
    ) -> None:
        self.table = RouteTable()
        """The routes of now."""
        self.callers = callers
        self.described = described
        self._trials = trials
        self._requests = requests
        self._peers = peers

    @contextmanager
    def visit(self, scope: Mapping[str, Any], headers: RequestHeaders) -> Iterator[Visitor]:
        """Who has made a request, which is counted for as long as the block lasts. Raises RequestRefusal."""
        client = scope.get("client")
        address = self._peers.of(client[0] if client else "", headers.said_by_proxy(self._peers.header))
        visitor = self._visitor(address, headers)
        with self._requests.taken(visitor.who):
            yield visitor

    @asynccontextmanager
    async def caller_of(self, visitor: Visitor) -> AsyncIterator[HttpCaller]:
        """As whom the mesh is called, kept while the block lasts. Raises RequestRefusal, SlotmeshError."""
        if visitor.refusal is not None:
            raise visitor.refusal
        caller = visitor.caller
        if caller is None:
            await self._trials.ask(visitor.token, visitor.address)
            caller = visitor.caller = self.callers.taken(visitor.token)
            if caller is None:
                text = "too many callers at once (--max-callers)"
                raise refusal(503, text, Reason.QUOTA_EXCEEDED, retry_delay_s=BUSY_RETRY_S)
            visitor.who = caller.number
        caller.in_use += 1
        try:
            yield caller
        except SlotmeshError as error:
            if error.reason is Reason.UNAUTHENTICATED:
                self.callers.refused(caller)
            raise
        finally:
            caller.in_use -= 1

    async def schemas_of(self, caller: HttpCaller, found: Matched) -> Schemas | None:
        """Of the method's arguments; None where they are not known."""
        return await self.described.arguments(caller, found.endpoint, found.method)

    @contextmanager
    def calling(
        self, caller: HttpCaller, endpoint: str, who: Requester, size: int, ordering_key: str = ""
    ) -> Iterator[OpenedStream]:
        """The stream for a call with so many bytes of arguments, while it is under way. Raises RequestRefusal."""
        if (calls := caller.endpoint(endpoint)) is None:
            text = "too many endpoints are called at once"
            raise refusal(503, text, Reason.QUOTA_EXCEEDED, retry_delay_s=BUSY_RETRY_S)
        calls.in_use += 1
        try:
            with calls.calling(who, size, ordering_key) as opened:
                yield opened
        except SlotmeshError as error:
            if error.reason in _FORGETTABLE:
                caller.forget(endpoint)
            raise
        finally:
            calls.in_use -= 1

    def _visitor(self, address: str, headers: RequestHeaders) -> Visitor:
        try:
            token = headers.token if self.callers.takes_tokens else ""
        except RequestRefusal as error:
            return Visitor(address, "", None, error)
        if token:
            return Visitor(address, token, self.callers.known(token))
        if self.callers.needs_token:
            why = unauthenticated("a bearer token is needed: Authorization: Bearer TOKEN")
            return Visitor(address, "", None, why)
        return Visitor(address, "", self.callers.own)
