"""Waits, after a change, until the mesh has what was asked for, and says meanwhile what is lacking."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Final

import typer

from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import FAILED, NOT_IN_TIME, CommandFailed
from slotmesh.cli.parameters import read_duration
from slotmesh.cli.saying import say
from slotmesh.cli.snapshot import ENDED, Members, RouterStatus
from slotmesh.cli.waiting import NO_ENDS, EndedRollouts, moving, still_lacks, taken_back
from slotmesh.errors import SlotmeshError
from slotmesh.spec.model import Backend
from slotmesh.units import format_duration

POLL_S: Final = 0.1
"""How soon it is seen that the mesh has changed."""

HOLD_ON_S: Final = 30.0
"""How long a command that waits after its change looks for the controller that leads, each time a connection broke."""

FAILING_S: Final = 3.0
"""A rollout that has something to go back to does so before: one that fails for longer does not get ready by itself."""

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


@contextmanager
def after_change(operator: Operator, done: str, look: str, patience: timedelta | None) -> Iterator[None]:
    """A block that looks at what follows from a change that was made, also where another controller leads by then.

    `done`: what was made, as `applied as revision 12`. `look`: the command that shows how it goes on. What fails in the
    block is no failure of the change: it is raised as CommandFailed, with the exit status for that.
    """
    within_s = HOLD_ON_S if patience is None else min(HOLD_ON_S, patience.total_seconds())
    operator.connection.hold_on(within_s)
    try:
        yield
    except (CommandFailed, SlotmeshError) as failure:
        if isinstance(failure, CommandFailed) and failure.exit_code != FAILED:
            raise
        lines = [f"{done}, but how it goes on is not known:", str(failure), f"see `{look}`"]
        raise CommandFailed("\n  ".join(lines), NOT_IN_TIME) from failure
    finally:
        operator.connection.hold_on(0.0)


class KnownRouters:
    """Routers that were attached before a connection broke: the controller that leads then sees them attach again."""

    def __init__(self, operator: Operator) -> None:
        self._connection = operator.connection
        self._reconnects = operator.connection.reconnects
        self._known: Mapping[str, RouterStatus] = {}

    def missing(self, members: Members) -> tuple[RouterStatus, ...]:
        """Those of them that are not attached again, of whose tables nothing is known."""
        there = {it.router_id: it for it in members.routers}
        if self._connection.reconnects == self._reconnects:
            self._known = there
        return tuple(it for name, it in self._known.items() if name not in there)


async def wait_until_ready(
    operator: Operator,
    backends: Collection[str],
    revision: int,
    patience: timedelta,
    *,
    done: str,
    ended: EndedRollouts = NO_ENDS,
    file: Collection[Backend] = (),
    endpoints: Collection[str] = (),
) -> None:
    """Waits for the replicas of these backends, and for routers that have the revision.

    `endpoints` are those whose traffic moves when rollouts are complete: that is waited for, too.

    Raises:
        CommandFailed: they are not ready in time, or will not be: their rollout was taken back, or fails. `done`, as
            `applied`, is what was done all the same; `ended`, what had been taken back before that; `file`, what the
            backends should be.
    """
    loop = asyncio.get_running_loop()
    deadline, failing_since = loop.time() + patience.total_seconds(), 0.0
    told: list[str] = []
    routers = KnownRouters(operator)
    while True:
        snapshot = await operator.snapshot()
        of_change = [it for it in snapshot.rollouts if it.backend in backends]
        if back := taken_back(snapshot, backends, ended, file):
            raise CommandFailed("\n  ".join([f"{done}, and taken back:", *back]), NOT_IN_TIME)
        waiting, stopped = moving(snapshot, endpoints)
        if stopped:
            raise CommandFailed("\n  ".join([f"{done}, but traffic does not move:", *stopped]), NOT_IN_TIME)
        if failing := [it for it in of_change if it.trouble]:
            failing_since = failing_since or loop.time()
            if loop.time() >= failing_since + FAILING_S:
                lines = [f"{done}, but it fails, and goes on failing:"]
                lines += [f"{it.backend}: {it.trouble}" for it in failing]
                raise CommandFailed("\n  ".join(lines), NOT_IN_TIME)
        else:
            failing_since = 0.0
        lacking = [*still_lacks(snapshot, backends, max(revision, snapshot.revision) if endpoints else revision)]
        lacking += waiting
        if missing := routers.missing(snapshot.members):
            lacking.append(f"routers: {', '.join(it.router_id for it in missing)} not attached to this controller yet")
        if not lacking:
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
