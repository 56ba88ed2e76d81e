"""A snapshot of the mesh as tables for people, and as JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slotmesh.cli.console import console_of
from slotmesh.cli.figures.rates import shown_rate
from slotmesh.cli.figures.rows import NO_FIGURES, BackendFigures, EndpointFigures, MeshFigures, RouterFigures
from slotmesh.cli.parameters import BACKEND, ENDPOINT, REPLICA, ROUTER
from slotmesh.cli.shifting import waiting_line
from slotmesh.cli.snapshot import FAILED_STATE, READY_STATE, STARTING_STATE, Members, ReplicaStatus, Snapshot
from slotmesh.cli.view.rollouts import rollout_as_json, rollout_lines
from slotmesh.cli.view.troubles import (
    crash_loops_of,
    is_long,
    leader_text,
    newer_members_text,
    shadow_troubles,
    troubles_of,
)
from slotmesh.spec.model import Backend, Endpoint

LINES_SHOWN: Final = 5
"""Of what the last process of a crash loop has written."""
_LOAD: Final = ("calls/s", "queue")
_STYLES: Final = {
    READY_STATE: "green",
    FAILED_STATE: "red",
    "SUSPECT": "yellow",
    "DRAINING": "yellow",
    "STARTING": "cyan",
}


class _Loads:
    """Calls a second and calls that wait, as JSON has them; nothing of what is not known."""

    def __init__(self, load: MeshFigures) -> None:
        self._endpoints = {it.name: it for it in load.endpoints}
        self._backends = {it.name: it for it in load.backends}
        self._routers = {it.router_id: it for it in load.routers}

    def of_endpoint(self, name: str) -> dict[str, Any]:
        return _load_json(self._endpoints.get(name))

    def of_backend(self, name: str) -> dict[str, Any]:
        return _load_json(self._backends.get(name))

    def of_router(self, router_id: str) -> dict[str, Any]:
        return _load_json(self._routers.get(router_id))


def _load_json(row: EndpointFigures | BackendFigures | RouterFigures | None) -> dict[str, Any]:
    rate = None if row is None or row.calls_per_s is None else round(row.calls_per_s, 3)
    return {"calls_per_s": rate, "queued": None if row is None else row.queued}


def _shown(load: dict[str, Any]) -> tuple[str, str]:
    queued = load["queued"]
    return shown_rate(load["calls_per_s"]), "" if queued is None else f"{queued:,}"


def print_tables(
    address: str,
    snapshot: Snapshot,
    out: TextIO,
    *,
    tracebacks: bool = False,
    load: MeshFigures = NO_FIGURES,
) -> None:
    """Writes the tables, then the long error texts of replicas. Colours only where `out` is a terminal.

    Of an error that is a traceback, the gist is written once for all replicas of a backend that have the same; with
    `tracebacks` each as a whole.
    """
    console = console_of(out)
    members = snapshot.members
    state = "on hold" if snapshot.is_on_hold else f"revision {members.revision}"
    console.print(f"controller {address}{leader_text(snapshot.controller)}  {state}")
    if lines := newer_members_text(snapshot.controller):
        console.print(Text(lines, style="red"))
    console.print(_endpoints(snapshot.endpoints, load))
    console.print(_backends(snapshot, load))
    console.print(replica_table(members.replicas, {backend.name for backend in snapshot.backends}))
    console.print(_routers(members, load))
    if not tracebacks:
        _print_troubles(console, members)
    for name in sorted(_shadows(snapshot)):
        for told in shadow_troubles(name, members):
            console.print(Text(f"\n{told}", style="yellow"))
    for line in (*rollout_lines(snapshot.rollouts), *(waiting_line(it) for it in snapshot.shifts if it.is_waiting)):
        console.print(Text(f"\n{line}", style="yellow"))
    for replica in members.replicas:
        if tracebacks and is_long(replica.error):
            console.print(Text(f"\n{replica.replica_id}, {replica.state}:", style="red"))
            console.print(Text(replica.error.rstrip()))
        if "\n" in replica.warning.strip():
            console.print(Text(f"\n{replica.replica_id}:", style="yellow"))
            console.print(Text(replica.warning.rstrip()))
    _print_crash_loops(console, members, sys.maxsize if tracebacks else LINES_SHOWN)


def _print_troubles(console: Console, members: Members) -> None:
    troubles = troubles_of(members.replicas)
    for trouble in troubles:
        count = f"{trouble.replicas} {'replica' if trouble.replicas == 1 else 'replicas'}"
        console.print(Text(f"\n{trouble.backend}, {count}: {trouble.what}", style="red"))
        if trouble.place:
            console.print(Text(f"  at {trouble.place}"))
    if troubles:
        console.print("\nThe whole tracebacks: slotmesh status --tracebacks")


def _print_crash_loops(console: Console, members: Members, most_lines: int) -> None:
    for loop in crash_loops_of(members.replicas):
        words = f"{loop.backend} is crash looping: {loop.restarts} restarts, and the last process {loop.last_exit}"
        console.print(Text(f"\n{words}", style="red"))
        for line in loop.last_lines[-most_lines:]:
            console.print(Text(f"  {line}"))
        if loop.last_lines:
            console.print(f"All that it wrote: slotmesh logs {loop.backend}")


def as_json(address: str, snapshot: Snapshot, load: MeshFigures = NO_FIGURES) -> dict[str, Any]:
    """The same, as values of JSON. Times are ISO 8601 in UTC."""
    members, loads = snapshot.members, _Loads(load)
    return {
        "controller": address,
        "leads": True,
        "term": snapshot.controller.term if snapshot.controller is not None else 0,
        "standbys": list(snapshot.controller.standby_addresses) if snapshot.controller is not None else [],
        "newer_members": list(snapshot.controller.newer_members) if snapshot.controller is not None else [],
        "generation": members.generation,
        "revision": members.revision,
        "endpoints": [
            {
                "name": endpoint.name,
                "traffic": dict(endpoint.traffic.weights) if endpoint.traffic else None,
                "shadows": dict(endpoint.traffic.shadows) if endpoint.traffic else {},
                **loads.of_endpoint(endpoint.name),
            }
            for endpoint in snapshot.endpoints
        ],
        "backends": [
            {
                "name": backend.name,
                "handler": backend.handler,
                "ready_replicas": len(members.ready(backend.name)),
                "attached_replicas": len(members.attached(backend.name)),
                "num_replicas": backend.num_replicas,
                "wanted_replicas": snapshot.wanted(backend),
                **loads.of_backend(backend.name),
                "shadow_copies": members.shadow(backend.name).copies,
                "shadow_drops": members.shadow(backend.name).dropped,
                "shadow_failures": members.shadow(backend.name).failed,
            }
            for backend in snapshot.backends
        ],
        "rollouts": [rollout_as_json(rollout) for rollout in snapshot.rollouts],
        "replicas": [replica_json(replica) for replica in members.replicas],
        "routers": [
            {
                "router_id": router.router_id,
                "address": router.address,
                "generation": router.generation,
                "revision": router.revision,
                "current": members.is_current(router),
                "linked_replica_ids": sorted(router.linked_replica_ids),
                "start_time": _iso(router.start_time),
                "metrics_address": router.metrics_address,
                "version": router.version,
                "end_reason": router.end_reason,
                **loads.of_router(router.router_id),
            }
            for router in members.routers
        ],
    }


def names_in(snapshot: Snapshot) -> list[str]:
    """Of all that there is, as `backend/NAME`."""
    members = snapshot.members
    return [
        *(f"{ENDPOINT}/{it.name}" for it in snapshot.endpoints),
        *(f"{BACKEND}/{it.name}" for it in snapshot.backends),
        *(f"{REPLICA}/{it.replica_id}" for it in members.replicas),
        *(f"{ROUTER}/{it.router_id}" for it in members.routers),
    ]


def replica_json(replica: ReplicaStatus) -> dict[str, Any]:
    """A replica as values of JSON."""
    return {
        "replica_id": replica.replica_id,
        "backend": replica.backend,
        "state": replica.state,
        "address": replica.address,
        "pid": replica.pid,
        "max_ongoing": replica.max_ongoing,
        "error": replica.error,
        "start_time": _iso(replica.start_time),
        "metrics_address": replica.metrics_address,
        "warning": replica.warning,
        "restart_count": replica.restart_count,
        "last_exit": replica.last_exit,
        "last_output": replica.last_output.splitlines(),
        "end_reason": replica.end_reason,
        "version": replica.version,
        "handler_version": replica.handler_version,
    }


def new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def readiness(backend: Backend, snapshot: Snapshot) -> Text:
    """How many replicas of a backend take calls, of how many that should."""
    ready, wanted = len(snapshot.members.ready(backend.name)), snapshot.wanted(backend)
    enough = ready >= (1 if wanted is None else wanted)
    return Text(f"{ready}/{'any' if wanted is None else wanted}", style="green" if enough else "yellow")


def replica_table(replicas: Iterable[ReplicaStatus], backends: Collection[str]) -> Table:
    """A row a replica. `backends` are the names of those that there are."""
    columns = ("replica", "backend", "state", "address", "pid", "slots", "since", "code", "version", "restarts")
    table = new_table("Replicas", *columns, "error or warning")
    for replica in replicas:
        table.add_row(
            replica.replica_id,
            replica.backend,
            Text(replica.state, style=_STYLES.get(replica.state, "")),
            replica.address,
            str(replica.pid or ""),
            str(replica.max_ongoing or ""),
            _clock(replica.start_time),
            replica.handler_version,
            replica.version,
            _restarts(replica),
            _trouble(replica, backends),
        )
    return table


def _shadows(snapshot: Snapshot) -> set[str]:
    return {name for endpoint in snapshot.endpoints if endpoint.traffic for name in endpoint.traffic.shadows}


def _endpoints(endpoints: Iterable[Endpoint], load: MeshFigures) -> Table:
    table, loads = new_table("Endpoints", "endpoint", "traffic", "shadows", *_LOAD), _Loads(load)
    for endpoint in endpoints:
        shown = _shown(loads.of_endpoint(endpoint.name))
        if endpoint.traffic is None:
            table.add_row(endpoint.name, "none: calls wait", "", *shown)
        else:
            weights, shadows = endpoint.traffic.weights, endpoint.traffic.shadows
            table.add_row(endpoint.name, _shares(weights), _shares(shadows), *shown)
    return table


def _backends(snapshot: Snapshot, load: MeshFigures) -> Table:
    table, loads = new_table("Backends", "backend", "handler", "ready", "attached", *_LOAD), _Loads(load)
    for backend in snapshot.backends:
        attached = str(len(snapshot.members.attached(backend.name)))
        shown = _shown(loads.of_backend(backend.name))
        table.add_row(backend.name, backend.handler, readiness(backend, snapshot), attached, *shown)
    return table


def _routers(members: Members, load: MeshFigures) -> Table:
    columns = ("router", "address", "table", "links", "since", "version", *_LOAD)
    table, loads = new_table("Routers", *columns), _Loads(load)
    ready = members.ready()
    for router in members.routers:
        current = members.is_current(router)
        linked = len(ready & router.linked_replica_ids)
        table.add_row(
            router.router_id,
            router.address,
            Text(
                f"{router.revision} {'current' if current else 'behind'}"
                + (f", ends: {router.end_reason}" if router.end_reason else ""),
                style="green" if current and not router.end_reason else "yellow",
            ),
            Text(f"{linked}/{len(ready)}", style="green" if linked == len(ready) else "yellow"),
            _clock(router.start_time),
            router.version,
            *_shown(loads.of_router(router.router_id)),
        )
    return table


def _shares(shares: Any) -> str:
    return ", ".join(f"{name} {share:.6g}" for name, share in sorted(shares.items()))


def _restarts(replica: ReplicaStatus) -> str:
    """How many, and how the latest came about; nothing where there was none."""
    if not replica.restart_count:
        return ""
    return f"{replica.restart_count}: {replica.last_exit}" if replica.last_exit else str(replica.restart_count)


def _trouble(replica: ReplicaStatus, backends: Collection[str]) -> Text:
    """What is wrong, in a line; else the warning."""
    if error := _last_line(replica):
        return Text(error, style="red")
    if replica.backend not in backends and replica.state in {STARTING_STATE, READY_STATE}:
        return Text(f"no backend {replica.backend}: nobody calls it until that is applied", style="yellow")
    if replica.end_reason:
        return Text(f"ends: {replica.end_reason}", style="yellow")
    return Text(_first_line(replica), style="yellow")


def _last_line(replica: ReplicaStatus) -> str:
    return (replica.error.strip().splitlines() or [""])[-1]


def _first_line(replica: ReplicaStatus) -> str:
    return (replica.warning.strip().splitlines() or [""])[0]


def _clock(time: datetime | None) -> str:
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
