"""`slotmesh logs`: what replicas have written, as far as the controller has started them."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import Annotated, Final

import typer

from slotmesh.cli.console import some_of
from slotmesh.cli.operator import RPC_TIMEOUT_S, Operator
from slotmesh.cli.parameters import BACKEND, CONTROLLER, REPLICA, ControllerAddress, name_of
from slotmesh.errors import BackendNotFound, ReplicaNotFound
from slotmesh.v1.controller_service_pb2 import ReadLogsRequest

_MOST_NAMED: Final = 3


async def logs(
    name: Annotated[
        str,
        typer.Argument(
            parser=name_of(REPLICA, BACKEND),
            metavar="REPLICA|BACKEND",
            help="The id of a replica, or the name of a backend.",
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=0, max=1_000_000, help="Newest lines of each replica; 0: all that are kept."),
    ] = 200,
    ended: Annotated[
        int,
        typer.Option(
            min=0, max=1_000_000, help="With a backend: how many of its replicas that have ended, the newest ones."
        ),
    ] = 4,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show what replicas have written to stdout and stderr: prints of the handler, logs, tracebacks.

    These are the newest 256 KiB of each replica that the controller has started, and of the newest 64 that have ended.
    With the name of a backend, each line begins with its replica; those that run go first, and the newest before
    others. Replicas that the controller has not started write wherever they were started. Lines are written as they
    are, with what steers a terminal: pipe them through `cat -v` where you do not trust the handler.
    """
    request = ReadLogsRequest(replica_id=name, max_lines=lines, follow=follow, max_ended=ended)
    async with Operator.at(address) as operator:
        try:
            await _print(operator, request)
        except ReplicaNotFound as error:
            request.backend = name
            try:
                await _print(operator, request)
            except BackendNotFound:
                raise error from None


async def _print(operator: Operator, request: ReadLogsRequest) -> None:
    timeout_s = None if request.follow else RPC_TIMEOUT_S
    async with aclosing(operator.stream(request, timeout_s)) as pages:
        async for page in pages:
            if page.omitted_replica_ids:
                named = some_of(page.omitted_replica_ids, _MOST_NAMED)
                text = f"slotmesh: {len(page.omitted_replica_ids)} replicas that have ended are left out ({named}):"
                typer.echo(f"{text} name one of them, or raise --ended", err=True)
            prefix = "" if page.replica_id == request.replica_id else f"{page.replica_id} | "
            if page.missed:
                typer.echo(f"{prefix}{page.missed} lines left out", err=True)
            sys.stdout.writelines(f"{prefix}{line}\n" for line in page.lines)
            sys.stdout.flush()
