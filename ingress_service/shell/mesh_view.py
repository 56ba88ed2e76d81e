"""What every door of the ingress asks of the mesh: which routes there are, as whom to call, with which stream.

Owner: the app, which changes `table` when routes have changed. Requests, WebSockets, inferences and pages read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ingress_service.core.arguments import Schemas
from ingress_service.core.problems import refusal
from ingress_service.core.requests import RequestHeaders, unauthenticated
from ingress_service.core.route_table import Matched, RouteTable
from ingress_service.shell.bodies import BUSY_RETRY_S
from ingress_service.shell.callers import EndpointCalls, HttpCaller, HttpCallers
from ingress_service.shell.described import Descriptions
from slotmesh.errors import Reason, SlotmeshError

_FORGETTABLE: Final = frozenset({Reason.ENDPOINT_NOT_FOUND, Reason.PERMISSION_DENIED, Reason.UNAUTHENTICATED})


class MeshView:
    """The mesh, as requests see it."""

    def __init__(self, callers: HttpCallers, described: Descriptions) -> None:
        self.table = RouteTable()
        """The routes of now."""
        self.callers = callers
        self.described = described

    @contextmanager
    def caller_of(self, headers: RequestHeaders) -> Iterator[HttpCaller]:
        """As whom the mesh is called, kept for as long as the block lasts. Raises RequestRefusal."""
        caller = self._found(headers)
        caller.in_use += 1
        try:
            yield caller
        finally:
            caller.in_use -= 1

    async def schemas_of(self, caller: HttpCaller, found: Matched) -> Schemas | None:
        """Of the method's arguments; None where they are not known."""
        return await self.described.arguments(caller, found.endpoint, found.method)

    @contextmanager
    def calling(self, caller: HttpCaller, endpoint: str) -> Iterator[EndpointCalls]:
        """The stream of an endpoint while a request uses it. Raises RequestRefusal."""
        if (calls := caller.endpoint(endpoint)) is None:
            text = "too many endpoints are called at once"
            raise refusal(503, text, Reason.QUOTA_EXCEEDED, retry_delay_s=BUSY_RETRY_S)
        calls.in_use += 1
        try:
            yield calls
        except SlotmeshError as error:
            if error.reason in _FORGETTABLE:
                caller.forget(endpoint)
            raise
        finally:
            calls.in_use -= 1

    def _found(self, headers: RequestHeaders) -> HttpCaller:
        token = headers.token if self.callers.takes_tokens else ""
        if not token:
            if self.callers.needs_token:
                raise unauthenticated("a bearer token is needed: Authorization: Bearer TOKEN")
            return self.callers.own
        try:
            caller = self.callers.of(token)
        except ValueError:
            raise unauthenticated("this is no bearer token") from None
        if caller is None:
            raise refusal(503, "too many callers at once", Reason.QUOTA_EXCEEDED, retry_delay_s=BUSY_RETRY_S)
        return caller
