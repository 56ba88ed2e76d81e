"""The mesh as requests, WebSockets, inferences and pages see it: the routes, the caller, the stream, descriptions.

Owner: the app, which changes `table` when routes have changed.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Final

from ingress_service.core.call_options import RequestTerms
from ingress_service.core.media import JSON
from ingress_service.core.openapi import DescribedEndpoint, DescribedMethod
from ingress_service.core.peers import BUSY_RETRY_S, PeerAddresses, RequestBound, Requester
from ingress_service.core.problems import RequestRefusal, refusal
from ingress_service.core.requests import RequestHeaders, unauthenticated
from ingress_service.core.routes import Matched, RouteTable
from ingress_service.shell.callers import ASK_S, HttpCaller, HttpCallers, OpenedStream, ask_routers
from ingress_service.shell.calls import make_call
from ingress_service.shell.token_trials import TokenTrials
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.v1 import router_service_pb2 as pb

KEEP_S: Final = 5.0
MISSING_KEEP_S: Final = 0.5
MAX_KEPT: Final = 1_024
_Key = tuple[int, str]
"""The caller that asks, and the endpoint."""
_NEVER: Final = (0.0, None)


class Descriptions:
    """What can be called, as routers describe it to a caller: for the texts of queries, and for the pages.

    Routers are asked as the caller, and report only what it may call. Answers are kept for a few seconds, for a bounded
    number of endpoints; a router that does not answer soon is done without.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, tuple[float, DescribedEndpoint | None]] = OrderedDict()
        self._asked: dict[_Key, asyncio.Task[DescribedEndpoint | None]] = {}
        """One query for all that wait for the same answer."""

    async def method(self, caller: HttpCaller, endpoint: str, name: str) -> DescribedMethod | None:
        """One method of an endpoint; None if nothing is known of it."""
        known = await self.endpoint(caller, endpoint)
        return None if known is None else next((it for it in known.methods if it.name == name), None)

    async def endpoint(self, caller: HttpCaller, name: str) -> DescribedEndpoint | None:
        """One endpoint; None if nothing is known of it."""
        key = (caller.number, name)
        until, known = self._kept.get(key, _NEVER)
        if until > asyncio.get_running_loop().time():
            return known
        if (asked := self._asked.get(key)) is None:
            asked = self._asked[key] = asyncio.create_task(self._learn(caller, key), name="describe-endpoint")
            asked.add_done_callback(lambda _: self._asked.pop(key, None))
        return await asyncio.shield(asked)

    async def has(self, caller: HttpCaller, name: str, method: str) -> bool:
        """Whether there is such a method, as far as the caller may call it. Raises SlotmeshError if no router answers.

        Also true if the methods of its endpoint are not known.
        """
        if (known := await self.endpoint(caller, name)) is None:
            known = next(iter(await self.ask(caller, name)), None)
        return known is not None and (not known.methods or any(it.name == method for it in known.methods))

    def close(self) -> None:
        """Asks no more."""
        for asked in self._asked.values():
            asked.cancel()

    def forget(self, caller: HttpCaller, name: str) -> None:
        """A router has reported something else: what is kept does not hold any more."""
        self._kept.pop((caller.number, name), None)

    async def ask(self, caller: HttpCaller, endpoint: str = "") -> Sequence[DescribedEndpoint]:
        """All endpoints that the caller may call, or one. Raises SlotmeshError where no router has answered."""
        request = pb.DescribeEndpointsRequest(endpoint=endpoint, with_schemas=True)

        async def describe(address: str) -> pb.DescribeEndpointsResponse:
            return await caller.routers.stub(address).DescribeEndpoints(request, timeout=ASK_S)

        response = await ask_routers(caller, describe, endpoint)
        return [_endpoint(each) for each in response.endpoints]

    async def _learn(self, caller: HttpCaller, key: _Key) -> DescribedEndpoint | None:
        caller.in_use += 1
        try:
            found = await self.ask(caller, key[1])
        except Exception:  # noqa: BLE001 - the call itself reports the failure
            found = []
        finally:
            caller.in_use -= 1
        known = found[0] if found else None
        if len(self._kept) >= MAX_KEPT:
            self._kept.popitem(last=False)
        keep_s = KEEP_S if known is not None and known.methods else MISSING_KEEP_S
        self._kept[key] = (asyncio.get_running_loop().time() + keep_s, known)
        return known


def _endpoint(wire: pb.DescribedEndpoint) -> DescribedEndpoint:
    outlines = {it.name: it for it in wire.described}
    methods = tuple(
        DescribedMethod(name=name, yields=outlines[name].yields, schema=_schema(outlines[name].schema))
        if name in outlines
        else DescribedMethod(name=name)
        for name in wire.methods
    )
    return DescribedEndpoint(name=wire.name, methods=methods)


def _schema(text: str) -> Mapping[str, Any]:
    """The schema that a replica has reported; empty if it is no object."""
    try:
        schema = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return schema if isinstance(schema, dict) else {}


_NO_ARGUMENTS: Final = b"?"
"""Malformed JSON, which replicas refuse before they call a handler."""
_FORGETTABLE: Final = frozenset({Reason.ENDPOINT_NOT_FOUND, Reason.PERMISSION_DENIED, Reason.UNAUTHENTICATED})


class Visitor:
    """The requester, as far as the headers and the connection of its request identify it."""

    __slots__ = ("address", "caller", "refusal", "token", "who")

    def __init__(self, address: str, token: str, caller: HttpCaller | None, refusal: Exception | None = None) -> None:
        self.address = address
        """That it counts under."""
        self.token = token
        """Empty: it has shown none."""
        self.caller = caller
        """The caller for calls of the mesh; None if its token is new here, or refused."""
        self.refusal = refusal
        """Why it has no caller: what needs none is answered all the same, as browsers' preflight requests."""
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
        """The requester, which is counted for as long as the block lasts. Raises RequestRefusal."""
        client = scope.get("client")
        address = self._peers.of(client[0] if client else "", headers.stated_by_proxy(self._peers.header))
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
                text = "too many callers at the same time (--max-callers)"
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

    async def method_of(
        self, caller: HttpCaller, found: Matched, who: Requester, terms: RequestTerms
    ) -> DescribedMethod:
        """What routers report of the method, where the call depends on it. Raises RequestRefusal, SlotmeshError.

        They report none while no replica is connected, and the request must not be misread then: a call that no handler
        accepts waits for a replica, on the terms of the request, or fails as the request's own call would.
        """
        if (method := await self.described.method(caller, found.endpoint, found.method)) is not None:
            return method
        terms = replace(terms, request_id="")
        try:
            with self.calling(caller, found.endpoint, who, len(_NO_ARGUMENTS), terms.ordering_key) as calls:
                await make_call(calls, found.method, JSON, terms, _NO_ARGUMENTS)
        except SlotmeshError as error:
            if error.reason is not Reason.BAD_ARGUMENTS:
                raise
        self.described.forget(caller, found.endpoint)
        if (method := await self.described.method(caller, found.endpoint, found.method)) is not None:
            return method
        text = "no router has reported yet which arguments the method takes"
        raise refusal(503, text, Reason.ROUTER_LOST, retry_delay_s=BUSY_RETRY_S)

    @contextmanager
    def calling(
        self, caller: HttpCaller, endpoint: str, who: Requester, size: int, ordering_key: str = ""
    ) -> Iterator[OpenedStream]:
        """The stream for a call with `size` bytes of arguments, while it is under way. Raises RequestRefusal."""
        if (calls := caller.endpoint(endpoint)) is None:
            text = "too many endpoints are called at the same time"
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
