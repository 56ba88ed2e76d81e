"""The endpoints that a router has described, and their methods: for `dir` and completion in shells.

Owner: the `Mesh`. `dir` itself sends no query on an event loop, which would block.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc

from slotmesh.client.routers import CLOSED, Routers, is_cancelled_here, refusal_of, unconnected
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception
from slotmesh.v1 import router_service_pb2


class DescribedEndpoints:
    """Queries the routers in turn, and caches the names."""

    def __init__(self, routers: Routers) -> None:
        self._routers = routers
        self._methods: dict[str, tuple[str, ...]] = {}

    def methods_of(self, endpoint: str) -> tuple[str, ...]:
        """The cached methods of an endpoint, sorted; empty if there are none."""
        return self._methods.get(endpoint, ())

    async def learn(self, endpoint: str = "", *, timeout_s: float) -> dict[str, tuple[str, ...]]:
        """Queries a router for all endpoints, or for one. `timeout_s`: for each router.

        Raises:
            SlotmeshError: no router has answered; the failure of the last one.
        """
        failure = Failure(reason=Reason.ROUTER_LOST, message="no router is known")
        request = router_service_pb2.DescribeEndpointsRequest(endpoint=endpoint)
        if not await self._routers.found(timeout_s):
            failure = self._routers.unreachable(timeout_s)
        for address in self._routers.in_turn(""):
            if self._routers.is_closed:
                break
            try:
                response = await self._routers.stub(address).DescribeEndpoints(request, timeout=timeout_s)
            except asyncio.CancelledError:
                if is_cancelled_here():
                    raise
                message = f"the connection to the router at {address} was given up"
                failure = Failure(reason=Reason.ROUTER_LOST, message=message)
            except grpc.RpcError as error:
                self._routers.look_again()
                failure = refusal_of(error, address, self._routers.dialer)
                if failure.reason is Reason.NOT_IMPLEMENTED:
                    break
                if self._routers.has_failed(address) and (problem := await self._routers.problem(address)):
                    failure = replace(failure, message=unconnected(address, problem))
            else:
                found = {each.name: tuple(each.methods) for each in response.endpoints}
                if not endpoint:
                    self._methods.clear()
                self._methods.update(found)
                return found
        raise to_exception(CLOSED if self._routers.is_closed else failure, endpoint=endpoint)
