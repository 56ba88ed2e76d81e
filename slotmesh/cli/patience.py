"""Waits, after a change, until the mesh has what was asked for, and says meanwhile what is lacking."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Final, TypeAlias

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

FAILING_S: Final = 3.0
"""A rollout that has something to go back to does so before: one that fails for longer does not get ready by itself."""
EndedRollouts: TypeAlias = Mapping[str, datetime | None]
"""When the rollout of a backend was taken back; None: it was not."""
NO_ENDS: Final[EndedRollouts] = MappingProxyType({})

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


async def ends_of_rollouts(operator: Operator) -> EndedRollouts:
    """When the rollouts of backends were taken back last, to be looked at before a change is made."""
    return {it.backend: it.taken_back_time for it in await operator.rollouts()}


async def wait_until_ready(
    operator: Operator,
    backends: Collection[str],
    revision: int,
    patience: timedelta,
    *,
    done: str,
    ended: EndedRollouts = NO_ENDS,
) -> None:
    """Waits for the replicas of these backends, and for routers that have the revision.

    Raises:
        CommandFailed: they are not ready in time, or will not be: their rollout was taken back, or fails. `done`, as
            `applied`, is what was done all the same; `ended`, what had been taken back before that.
    """
    loop = asyncio.get_running_loop()
    deadline, failing_since = loop.time() + patience.total_seconds(), 0.0
    told: list[str] = []
    while True:
        snapshot = await operator.snapshot()
        of_change = [it for it in snapshot.rollouts if it.backend in backends]
        if back := [it for it in of_change if it.taken_back and it.taken_back_time != ended.get(it.backend)]:
            lines = [f"{done}, and taken back:", *(f"{it.backend}: {it.taken_back}" for it in back)]
            raise CommandFailed("\n  ".join(lines), NOT_IN_TIME)
        if failing := [it for it in of_change if it.trouble]:
            failing_since = failing_since or loop.time()
            if loop.time() >= failing_since + FAILING_S:
                lines = [f"{done}, but it fails, and goes on failing:"]
                lines += [f"{it.backend}: {it.trouble}" for it in failing]
                raise CommandFailed("\n  ".join(lines), NOT_IN_TIME)
        else:
            failing_since = 0.0
        if not (lacking := still_lacks(snapshot, backends, revision)):
            break
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
