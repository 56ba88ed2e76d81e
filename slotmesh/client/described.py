"""What can be called, as a router describes it: for people who look around, and for Tab in their shells.

Purpose: asks the routers in turn, and remembers the names of methods, so that `dir` of an endpoint has them.
Invariant: `dir` itself asks nobody where an event loop would have to wait for it.
Owner: the `Mesh`.
"""

from __future__ import annotations

from typing import Final

import grpc

from slotmesh.client.stream.call_stream import CLOSED
from slotmesh.client.stream.routers import Routers
from slotmesh.client.stream.rpc_failures import refusal_of
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception
from slotmesh.v1 import router_service_pb2

LOOK_S: Final = 1.0
"""What Tab may wait for a router, seconds."""


class DescribedEndpoints:
    """The endpoints that a router has named, and their methods."""

    def __init__(self, routers: Routers) -> None:
        self._routers = routers
        self._methods: dict[str, tuple[str, ...]] = {}

    def methods_of(self, endpoint: str) -> tuple[str, ...]:
        """What was learnt of an endpoint, sorted; empty where nothing was."""
        return self._methods.get(endpoint, ())

    async def learn(self, endpoint: str = "", *, timeout_s: float) -> dict[str, tuple[str, ...]]:
        """Asks a router for all endpoints, or for one. Each router is given so many seconds.

        Raises:
            SlotmeshError: no router has answered, and why the last one has not.
        """
        failure: Failure = CLOSED
        request = router_service_pb2.DescribeEndpointsRequest(endpoint=endpoint)
        for address in self._routers.in_turn(""):
            try:
                response = await self._routers.stub(address).DescribeEndpoints(request, timeout=timeout_s)
            except grpc.RpcError as error:
                failure = refusal_of(error, address, self._routers.dialer)
                if failure.reason is Reason.NOT_IMPLEMENTED:
                    break
            else:
                told = {each.name: tuple(each.methods) for each in response.endpoints}
                if not endpoint:
                    self._methods.clear()
                self._methods.update(told)
                return told
        raise to_exception(failure, endpoint=endpoint)
