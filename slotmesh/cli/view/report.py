"""A snapshot of the mesh as tables for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slotmesh.cli.snapshot import FAILED, READY, Members, ReplicaStatus, Snapshot
from slotmesh.cli.view.troubles import is_long, troubles_of
from slotmesh.spec.model import Backend, Endpoint

_PIPED_WIDTH: Final = 200
"""Columns where the output is no terminal."""
_STYLES: Final = {READY: "green", FAILED: "red", "SUSPECT": "yellow", "DRAINING": "yellow", "STARTING": "cyan"}


def print_tables(address: str, snapshot: Snapshot, out: TextIO, *, tracebacks: bool = False) -> None:
    """Writes the tables, then the long error texts of replicas. Colours only where `out` is a terminal.

    Of an error that is a traceback, the gist is written once for all replicas of a backend that have the same; with
    `tracebacks` each as a whole.
    """
    console = console_of(out)
    members = snapshot.members
    console.print(f"controller {address}  revision {members.revision}")
    console.print(_endpoints(snapshot.endpoints))
    console.print(_backends(snapshot.backends, members))
    console.print(_replicas(members))
    console.print(_routers(members))
    if not tracebacks:
        _print_troubles(console, members)
    for replica in members.replicas:
        if tracebacks and is_long(replica.error):
            console.print(Text(f"\n{replica.replica_id}, {replica.state}:", style="red"))
            console.print(Text(replica.error.rstrip()))
        if "\n" in replica.warning.strip():
            console.print(Text(f"\n{replica.replica_id}:", style="yellow"))
            console.print(Text(replica.warning.rstrip()))


def _print_troubles(console: Console, members: Members) -> None:
    troubles = troubles_of(members.replicas)
    for trouble in troubles:
        count = f"{trouble.replicas} {'replica' if trouble.replicas == 1 else 'replicas'}"
        console.print(Text(f"\n{trouble.backend}, {count}: {trouble.what}", style="red"))
        if trouble.place:
            console.print(Text(f"  at {trouble.place}"))
    if troubles:
        console.print("\nThe whole tracebacks: slotmesh status --tracebacks")


def as_json(address: str, snapshot: Snapshot) -> dict[str, Any]:
    """The same, as values of JSON. Times are ISO 8601 in UTC."""
    members = snapshot.members
    return {
        "controller": address,
        "generation": members.generation,
        "revision": members.revision,
        "endpoints": [
            {
                "name": endpoint.name,
                "traffic": dict(endpoint.traffic.weights) if endpoint.traffic else None,
                "shadows": dict(endpoint.traffic.shadows) if endpoint.traffic else {},
            }
            for endpoint in snapshot.endpoints
        ],
        "backends": [
            {
                "name": backend.name,
                "handler": backend.handler,
                "ready_replicas": len(members.ready(backend.name)),
                "num_replicas": backend.num_replicas,
            }
            for backend in snapshot.backends
        ],
        "replicas": [
            {
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
                "version": replica.version,
            }
            for replica in members.replicas
        ],
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
            }
            for router in members.routers
        ],
    }


def console_of(out: TextIO) -> Console:
    """Where tables go. What is printed is taken as it is."""
    width = None if out.isatty() else _PIPED_WIDTH
    return Console(file=out, width=width, highlight=False, markup=False, emoji=False)


def new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def readiness(backend: Backend, members: Members) -> Text:
    """How many replicas of a backend take calls, of how many that should."""
    ready = len(members.ready(backend.name))
    wanted = "any" if backend.num_replicas is None else backend.num_replicas
    enough = ready >= (1 if backend.num_replicas is None else backend.num_replicas)
    return Text(f"{ready}/{wanted}", style="green" if enough else "yellow")


def _endpoints(endpoints: Iterable[Endpoint]) -> Table:
    table = new_table("Endpoints", "endpoint", "traffic", "shadows")
    for endpoint in endpoints:
        if endpoint.traffic is None:
            table.add_row(endpoint.name, "none: calls wait", "")
        else:
            table.add_row(endpoint.name, _shares(endpoint.traffic.weights), _shares(endpoint.traffic.shadows))
    return table


def _backends(backends: Iterable[Backend], members: Members) -> Table:
    table = new_table("Backends", "backend", "handler", "ready")
    for backend in backends:
        table.add_row(backend.name, backend.handler, readiness(backend, members))
    return table


def _replicas(members: Members) -> Table:
    columns = ("replica", "backend", "state", "address", "pid", "slots", "since", "version", "restarts")
    table = new_table("Replicas", *columns, "error or warning")
    for replica in members.replicas:
        table.add_row(
            replica.replica_id,
            replica.backend,
            Text(replica.state, style=_STYLES.get(replica.state, "")),
            replica.address,
            str(replica.pid or ""),
            str(replica.max_ongoing or ""),
            _clock(replica.start_time),
            replica.version,
            _restarts(replica),
            _trouble(replica),
        )
    return table


def _routers(members: Members) -> Table:
    table = new_table("Routers", "router", "address", "table", "links", "since", "version")
    ready = members.ready()
    for router in members.routers:
        current = members.is_current(router)
        linked = len(ready & router.linked_replica_ids)
        table.add_row(
            router.router_id,
            router.address,
            Text(f"{router.revision} {'current' if current else 'behind'}", style="green" if current else "yellow"),
            Text(f"{linked}/{len(ready)}", style="green" if linked == len(ready) else "yellow"),
            _clock(router.start_time),
            router.version,
        )
    return table


def _shares(shares: Any) -> str:
    return ", ".join(f"{name} {share:.6g}" for name, share in sorted(shares.items()))


def _restarts(replica: ReplicaStatus) -> str:
    """How many, and how the latest came about; nothing where there was none."""
    if not replica.restart_count:
        return ""
    return f"{replica.restart_count}: {replica.last_exit}" if replica.last_exit else str(replica.restart_count)


def _trouble(replica: ReplicaStatus) -> Text:
    """What is wrong, in a line; else the warning."""
    if error := _last_line(replica):
        return Text(error, style="red")
    return Text(_first_line(replica), style="yellow")


def _last_line(replica: ReplicaStatus) -> str:
    return (replica.error.strip().splitlines() or [""])[-1]


def _first_line(replica: ReplicaStatus) -> str:
    return (replica.warning.strip().splitlines() or [""])[0]


def _clock(time: datetime | None) -> str:
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
