"""`slotmesh stubs`: the interface of an endpoint, as Python."""

from __future__ import annotations

from typing import Final

import typer

from slotmesh.calls.method_outlines import MethodOutline
from slotmesh.cli.connection import Peer
from slotmesh.cli.console import CommandFailed
from slotmesh.cli.interface_source import interface_source
from slotmesh.cli.parameters import ROUTER_ADDRESS, EndpointName, RouterAddress
from slotmesh.v1.router_service_pb2 import DescribeEndpointsRequest

_TIMEOUT_S: Final = 30.0


async def stubs(endpoint: EndpointName, *, address: RouterAddress = ROUTER_ADDRESS) -> None:
    """Print the methods of an endpoint as a Python class, for editors and type checkers.

    It has the names and types that handlers of connected replicas have, and imports nothing of theirs. Give it to
    `mesh.endpoint`. Print it again when the handler has changed.

    Like this:

        slotmesh stubs carts > carts.py
    """
    request = DescribeEndpointsRequest(endpoint=endpoint, with_schemas=True)
    response = await Peer("router", address).ask(request, _TIMEOUT_S)
    if not response.endpoints:
        raise CommandFailed(f"there is no endpoint {endpoint}")
    described = response.endpoints[0]
    known = {each.name: MethodOutline(each.name, each.yields, each.schema) for each in described.described}
    if not described.methods:
        raise CommandFailed(f"no replica of {endpoint} is connected to {address}: its methods are not known")
    outlines = [known.get(name, MethodOutline(name)) for name in described.methods]
    typer.echo(interface_source(endpoint, outlines), nl=False)
