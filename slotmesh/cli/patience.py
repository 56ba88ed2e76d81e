"""Waits, after a change, until the mesh has what was asked for, and says meanwhile what is lacking."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import timedelta
from typing import Annotated, Final

import typer

from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import NOT_IN_TIME, CommandFailed
from slotmesh.cli.parameters import read_duration
from slotmesh.cli.saying import say
from slotmesh.cli.snapshot import ENDED
from slotmesh.cli.waiting import still_lacks
from slotmesh.units import format_duration

POLL_S: Final = 0.1
"""How soon it is seen that the mesh has changed."""

WaitForReady = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Return when all replicas are ready and all routers reach them, or at once.",
        show_default="--wait on a terminal",
    ),
]
Patience = Annotated[
    timedelta,
    typer.Option(parser=read_duration, metavar="DURATION", show_default="2m", help="How long --wait may take."),
]
DEFAULT_PATIENCE: Final = timedelta(minutes=2)


async def wait_until_ready(
    operator: Operator, backends: Collection[str], revision: int, patience: timedelta, *, done: str
) -> None:
    """Waits for the replicas of these backends, and for routers that have the revision.

    Raises:
        CommandFailed: they are not ready in time; `done`, as `applied`, is what was done all the same.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience.total_seconds()
    told: list[str] = []
    while lacking := still_lacks(await operator.snapshot(), backends, revision):
        if loop.time() >= deadline:
            lines = [f"{done}, but not ready within {format_duration(patience)}:", *lacking]
            raise CommandFailed("\n  ".join(lines), NOT_IN_TIME)
        for line in lacking:
            if line not in told:
                say(f"slotmesh: {line}", err=True)
        told = lacking
        await asyncio.sleep(POLL_S)
    typer.echo("slotmesh: ready", err=True)


async def wait_until_ended(operator: Operator, replica_ids: Collection[str], patience: timedelta) -> None:
    """Waits until these replicas have ended. Raises CommandFailed where they have not in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience.total_seconds()
    while remaining := [
        it for it in (await operator.members()).replicas if it.replica_id in replica_ids and it.state not in ENDED
    ]:
        if loop.time() >= deadline:
            lines = [f"told to drain, but not ended within {format_duration(patience)}:"]
            lines += [f"{it.replica_id} {it.state.lower()}" for it in remaining]
            raise CommandFailed("\n  ".join(lines), NOT_IN_TIME)
        await asyncio.sleep(POLL_S)
