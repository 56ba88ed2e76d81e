"""When a mesh that was changed is ready, and what it still lacks. Pure.

Ready means: each backend has as many replicas that take calls as it should have, none of them runs what it was started
with before the change, and each router has the change and reaches all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias

from slotmesh.cli.snapshot import FAILED, Members, ReplicaStatus, Snapshot
from slotmesh.cli.view.shifts import waiting_line
from slotmesh.spec.model import DOCUMENT_SETTINGS, Backend
from slotmesh.spec.setting import Change

_OVER: Final = frozenset({FAILED, "STOPPED"})
_MAX_REASON_CHARS: Final = 200
EndedRollouts: TypeAlias = Mapping[str, datetime | None]
"""When the rollout of a backend was taken back; None: it was not."""
NO_ENDS: Final[EndedRollouts] = MappingProxyType({})


def taken_back(
    snapshot: Snapshot, backends: Collection[str], ended: EndedRollouts, file: Collection[Backend]
) -> list[str]:
    """Why backends do not run what they should, a line each: because it was taken back.

    That is so if it happened after `ended`; or before that, if `file` says something else than what is in force.
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
        elif rollout.taken_back_time != ended.get(name):
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
    lacking = [
        line for it in snapshot.backends if it.name in backends for line in _of(it.name, it.num_replicas, members)
    ]
    behind = members.behind(revision)
    if behind:
        lacking.append(f"routers: {len(behind)} of {len(members.routers)} do not have the change yet")
    ready = frozenset(name for backend in backends for name in members.ready(backend))
    unlinked = [it.router_id for it in members.routers if it not in behind and not it.linked_replica_ids >= ready]
    if unlinked:
        lacking.append(f"routers: {', '.join(unlinked)} not linked to all replicas yet")
    return lacking


def moving(snapshot: Snapshot, endpoints: Collection[str]) -> tuple[list[str], list[str]]:
    """Of traffic that moves when rollouts are complete: what it waits for, and why some never will, a line each."""
    lacking, ended = [], []
    for shift in snapshot.shifts:
        if shift.endpoint not in endpoints:
            continue
        if shift.is_waiting:
            lacking.append(waiting_line(shift))
        elif not (shift.is_there or shift.is_under_way):
            ended.append(f"traffic of {shift.endpoint} stays where it is: {shift.reason}")
    return lacking, ended


def _of(backend: str, wanted: int | None, members: Members) -> Iterator[str]:
    replicas = [it for it in members.replicas if it.backend == backend and it.state not in _OVER]
    current = sum(it.replica_id in members.ready(backend) and not it.outdated for it in replicas)
    old = sum(it.outdated for it in replicas)
    if wanted is not None and current < wanted:
        new = "new replicas" if old else "replicas"
        yield f"{backend}: {current} of {wanted} {new} ready{_why(backend, members)}"
    elif old:
        yield f"{backend}: {current} replicas ready, {old} that were there before drain"


def _why(backend: str, members: Members) -> str:
    """The newest failure of a replica that should have got ready."""
    failed = [it for it in members.replicas if it.backend == backend and it.error and not it.outdated]
    newest: ReplicaStatus | None = max(failed, key=lambda it: (it.start_time is not None, it.start_time), default=None)
    if newest is None:
        return ""
    reason = newest.error.strip().splitlines()[-1][:_MAX_REASON_CHARS]
    return f"; {newest.replica_id} {newest.state.lower()}: {reason}"
