"""What can be called, as routers describe it to a caller: for the texts of queries, and for the pages.

Invariants: asked as the caller, who is told of what it may call only; kept for a few seconds, for a bounded number of
endpoints; a router that does not answer soon is done without.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc

from ingress_service.core.arguments import Schemas
from ingress_service.core.descriptions import DescribedEndpoint, DescribedMethod
from ingress_service.shell.callers import HttpCaller
from slotmesh.client.stream.rpc_failures import refusal_of
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception
from slotmesh.v1 import router_service_pb2 as pb

KEEP_S: Final = 5.0
MISSING_KEEP_S: Final = 0.5
ASK_S: Final = 2.0
MAX_KEPT: Final = 1_024


class Descriptions:
    """Asks routers, and remembers for a while."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, DescribedEndpoint | None]] = OrderedDict()

    async def arguments(self, caller: HttpCaller, endpoint: str, method: str) -> Schemas | None:
        """The schemas of a method's arguments, by name, with `$defs`; None where they are not known."""
        now = asyncio.get_running_loop().time()
        until, known = self._kept.get(endpoint, (0.0, None))
        if until <= now:
            try:
                found = await self.ask(caller, endpoint)
            except Exception:  # noqa: BLE001 - the call itself says what is wrong
                found = []
            known = found[0] if found else None
            if len(self._kept) >= MAX_KEPT:
                self._kept.popitem(last=False)
            self._kept[endpoint] = (now + (KEEP_S if known is not None and known.methods else MISSING_KEEP_S), known)
        if known is None:
            return None
        schema = next((it.schema for it in known.methods if it.name == method), {})
        arguments = schema.get("arguments")
        if not isinstance(arguments, Mapping) or not isinstance(named := arguments.get("properties"), Mapping):
            return None
        return {**named, "$defs": schema.get("$defs", {})}

    async def ask(self, caller: HttpCaller, endpoint: str = "") -> Sequence[DescribedEndpoint]:
        """All endpoints that the caller may call, or one. Raises SlotmeshError where no router has answered."""
        failure = Failure(reason=Reason.ROUTER_LOST, message="no router can be reached")
        request = pb.DescribeEndpointsRequest(endpoint=endpoint, with_schemas=True)
        for address in caller.routers.in_turn(""):
            try:
                response = await caller.routers.stub(address).DescribeEndpoints(request, timeout=ASK_S)
            except grpc.RpcError as error:
                failure = refusal_of(error, address, caller.routers.dialer)
                if failure.reason in {Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED}:
                    break
            else:
                return [_endpoint(each) for each in response.endpoints]
        raise to_exception(failure, endpoint=endpoint)


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
    """What a replica has told; nothing where that is no object."""
    try:
        schema = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return schema if isinstance(schema, dict) else {}
