"""Waits after a change until the mesh is ready, and reports meanwhile what it lacks.

Ready means: each backend has its number of replicas that accept calls, none of them still runs what it was started with
before the change, its rollout is complete, and each router has the change and a link to all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Final, TypeAlias

import typer

from slotmesh.cli.console import FAILED, NOT_IN_TIME, CommandFailed, Looks, is_interactive, say
from slotmesh.cli.controller_view import ENDED, Members, Snapshot, is_waiting
from slotmesh.cli.documents import word_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import duration
from slotmesh.cli.shifting import waiting_line
from slotmesh.cli.versions import shown_version
from slotmesh.errors import SlotmeshError
from slotmesh.spec.model import DOCUMENT_SETTINGS, Backend
from slotmesh.spec.setting import Change
from slotmesh.units import format_duration
from slotmesh.v1 import mesh_pb2, rollout_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb

_MAX_REASON_CHARS: Final = 200
NO_ROLLOUT: Final = rollout_pb2.Rollout()
"""Of a backend whose replicas the controller does not launch."""
EndedRollouts: TypeAlias = Mapping[str, int]
"""When the rollout of a backend was taken back, in nanoseconds since 1970; 0: it was not."""
NO_ENDS: Final[EndedRollouts] = MappingProxyType({})


def taken_back(
    snapshot: Snapshot, backends: Collection[str], ended: EndedRollouts, file: Collection[Backend]
) -> list[str]:
    """The backends whose rollout was taken back, a line with the reason each.

    A rollout counts if it was taken back after `ended`; or before that, if `file` differs from what is in force.
    """
    live, wanted = ({it.name: it for it in some} for some in (snapshot.backends, file))
    lines = []
    for rollout in snapshot.rollouts:
        name = rollout.backend
        if name not in backends or not rollout.taken_back:
            continue
        other = _not_in_force(wanted[name], live[name]) if name in wanted and name in live else []
        if other:
            lines.append(f"{name}: {rollout.taken_back}; its {', '.join(other)} is not what the file says")
        elif rollout.taken_back_time.ToNanoseconds() != ended.get(name, 0):
            lines.append(f"{name}: {rollout.taken_back}")
    return lines


def _not_in_force(wanted: Backend, live: Backend) -> list[str]:
    """The settings that replicas are started with and that differ. Without a version the code itself is compared."""
    return [
        name
        for name, it in DOCUMENT_SETTINGS.items()
        if it.change is not Change.TAKEN_OVER
        and getattr(wanted, it.attribute) != getattr(live, it.attribute)
        and not (name == "version" and not wanted.version)
    ]


def still_lacks(snapshot: Snapshot, backends: Collection[str], revision: int) -> list[str]:
    """What is missing of these backends, and of the configuration's revision, a line each."""
    members = snapshot.members
    rollouts = {it.backend: it for it in snapshot.rollouts}
    lacking = [
        line
        for it in snapshot.backends
        if it.name in backends
        for line in _of(
            it.name, None if it.autoscale else snapshot.wanted(it), members, rollouts.get(it.name, NO_ROLLOUT)
        )
    ]
    behind = members.behind(revision)
    if behind:
        lacking.append(f"routers: {len(behind)} of {len(members.routers)} do not have the change yet")
    ready = frozenset(name for backend in backends for name in members.ready(backend))
    unlinked = [
        it.router_id for it in members.routers if it not in behind and not ready.issubset(it.linked_replica_ids)
    ]
    if unlinked:
        lacking.append(f"routers: {', '.join(unlinked)} not linked to all replicas yet")
    return lacking


def moving(snapshot: Snapshot, endpoints: Collection[str]) -> tuple[list[str], list[str]]:
    """Of traffic that moves when rollouts are complete: what it waits for, and why some never will, a line each."""
    lacking, ended = [], []
    for shift in snapshot.shifts:
        if shift.endpoint not in endpoints:
            continue
        if is_waiting(shift):
            lacking.append(waiting_line(shift))
        elif shift.phase not in {shift_pb.SHIFT_PHASE_COMPLETE, shift_pb.SHIFT_PHASE_SHIFTING}:
            ended.append(f"traffic of {shift.endpoint} stays where it is: {shift.reason}")
    return lacking, ended


def _awaited(backend: Backend, snapshot: Snapshot) -> int | None:
    """How many replicas to wait for; None: any number, also of a backend that scales with its load."""
    return None if backend.autoscale is not None else snapshot.wanted(backend)


def _of(backend: str, wanted: int | None, members: Members, rollout: rollout_pb2.Rollout) -> Iterator[str]:
    replicas = [it for it in members.replicas if it.backend == backend and it.state not in ENDED]
    current = sum(it.replica_id in members.ready(backend) and not it.outdated for it in replicas)
    old = sum(it.outdated for it in replicas)
    is_held = bool(old) and rollout.paused
    held = f"; its rollout is paused: `slotmesh rollout resume {backend}` lets it continue" if is_held else ""
    if wanted is not None and current < wanted:
        new = "new replicas" if old else "replicas"
        yield f"{backend}: {current} of {wanted} {new} ready{_why(backend, members)}{held}"
    elif old:
        yield f"{backend}: {current} replicas ready, {old} that were there before drain{held}"
    elif rollout.phase in {rollout_pb2.ROLLOUT_PHASE_PROGRESSING, rollout_pb2.ROLLOUT_PHASE_ROLLING_BACK}:
        of_wanted = f"{rollout.available} of {rollout.wanted} replicas"
        yield f"{backend}: {of_wanted} have been ready for its min_ready, the rollout is not complete yet"


def _why(backend: str, members: Members) -> str:
    """The newest failure of a replica that should have got ready."""
    failed = [it for it in members.replicas if it.backend == backend and it.error and not it.outdated]
    newest = max(failed, key=lambda it: it.start_time.ToNanoseconds(), default=None)
    if newest is None:
        return ""
    reason = newest.error.strip().splitlines()[-1][:_MAX_REASON_CHARS]
    return f"; {newest.replica_id} {word_of(newest, 'state').lower()}: {reason}"


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
Patience = Annotated[timedelta, duration("How long --wait may take.", show_default="2m")]
DEFAULT_PATIENCE: Final = timedelta(minutes=2)


def patience_of(wait: bool | None, timeout: timedelta) -> timedelta | None:
    """How long to wait for what follows from a change; None: not at all."""
    return timeout if (is_interactive() if wait is None else wait) else None


async def ends_of_rollouts(operator: Operator) -> EndedRollouts:
    """When the rollouts of backends were taken back last, to be looked at before a change is made."""
    return {it.backend: it.taken_back_time.ToNanoseconds() for it in await operator.rollouts()}


@contextmanager
def after_change(operator: Operator, done: str, look: str, patience: timedelta | None) -> Iterator[None]:
    """A block that waits for the effects of an applied change, even if another controller leads meanwhile.

    `done`: the change, as `applied as revision 12`. `look`: the command that shows its progress. A failure in the block
    is no failure of the change: it is raised as CommandFailed, with the exit status for that.
    """
    if operator.connection.is_on_hold:
        raise CommandFailed(f"{done}, and stored; the controller is on hold: there is nothing to wait for", NOT_IN_TIME)
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
        self._known: Mapping[str, mesh_pb2.Router] = {}

    def missing(self, members: Members) -> tuple[mesh_pb2.Router, ...]:
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
    loop, failing_since = asyncio.get_running_loop(), 0.0
    printed: list[str] = []
    routers = KnownRouters(operator)
    async for is_late in Looks(POLL_S, patience.total_seconds()):
        snapshot = await operator.snapshot()
        if back := taken_back(snapshot, backends, ended, file):
            raise _not_ready(f"{done}, and taken back:", back, snapshot, backends)
        waiting, stopped = moving(snapshot, endpoints)
        if stopped:
            raise _not_ready(f"{done}, but traffic does not move:", stopped, snapshot, backends)
        if failing := [it for it in snapshot.rollouts if it.backend in backends and it.trouble]:
            failing_since = failing_since or loop.time()
            if loop.time() >= failing_since + FAILING_S:
                lines = [f"{it.backend}: {it.trouble}" for it in failing]
                raise _not_ready(f"{done}, but it fails, and goes on failing:", lines, snapshot, backends)
        else:
            failing_since = 0.0
        lacking = [*still_lacks(snapshot, backends, max(revision, snapshot.revision) if endpoints else revision)]
        lacking += waiting
        if missing := routers.missing(snapshot.members):
            lacking.append(f"routers: {', '.join(it.router_id for it in missing)} not attached to this controller yet")
        if not lacking:
            break
        if is_late:
            title = f"{done}, but not ready within {format_duration(patience)}:"
            raise _not_ready(title, lacking, snapshot, backends)
        for line in lacking:
            if line not in printed:
                say(f"slotmesh: {line}", err=True)
        printed = lacking
    typer.echo("slotmesh: ready", err=True)


def _not_ready(title: str, lines: list[str], snapshot: Snapshot, backends: Collection[str]) -> CommandFailed:
    """The failure, with the state of the other backends of the same change."""
    named = {line.partition(":")[0] for line in lines}
    others = [
        line
        for it in snapshot.backends
        if it.name in backends and it.name not in named
        for line in _state(it, snapshot)
    ]
    if others:
        lines = [*lines, "the other backends of this change:", *(f"  {line}" for line in others)]
    return CommandFailed("\n  ".join([title, *lines]), NOT_IN_TIME)


def _state(backend: Backend, snapshot: Snapshot) -> list[str]:
    """What a backend lacks; or how many of its replicas are ready, and what they run."""
    lacking = still_lacks(replace(snapshot, members=replace(snapshot.members, routers=())), [backend.name], 0)
    if lacking:
        return lacking
    runs = f"{backend.handler} {shown_version(backend.version)}".strip()
    ready = f"{backend.name}: ready, with {len(snapshot.members.ready(backend.name))} replicas"
    return [f"{ready} of {runs}" if runs else ready]


async def wait_until_ended(operator: Operator, replica_ids: Collection[str], patience: timedelta) -> None:
    """Waits until these replicas have ended. Raises CommandFailed where they have not in time."""
    async for is_late in Looks(POLL_S, patience.total_seconds()):
        there = [it for it in (await operator.members()).replicas if it.replica_id in replica_ids]
        remaining = [it for it in there if it.state not in ENDED]
        if not remaining:
            return
        if is_late:
            lines = [f"draining, but not ended within {format_duration(patience)}:"]
            lines += [f"{it.replica_id} {word_of(it, 'state').lower()}" for it in remaining]
            raise CommandFailed("\n  ".join(lines), NOT_IN_TIME)
