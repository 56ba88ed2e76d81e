"""`slotmesh health`: whether a server accepts work, for probes and for people."""

from __future__ import annotations

from typing import Any, Final

import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.cli.connection import CONNECT_TIMEOUT_S, Peer
from slotmesh.cli.console import CommandFailed, Output, OutputForm, Printable
from slotmesh.cli.parameters import CONTROLLER, ServerAddress

SERVING: Final = "SERVING"


async def health(output: Output = OutputForm.TABLE, address: ServerAddress = CONTROLLER) -> None:
    """Ask a controller, router or replica whether it takes work (grpc.health.v1).

    Prints the status. Exit status 0: it is SERVING; 1: it is not, or nothing answers. Made for health checks of
    containers.
    """
    peer = Peer("server", address)
    async with peer.connect() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        with peer.telling():
            response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CONNECT_TIMEOUT_S)
    try:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    except ValueError as error:
        raise CommandFailed(f"{address} answers with the unknown status {response.status}") from error
    Printable(
        table=lambda out: print(f"{address} {status}", file=out),
        document=lambda: {"address": address, "status": status, "serving": status == SERVING},
        names=tuple,
    ).write(output)
    if status != SERVING:
        raise typer.Exit(1)
