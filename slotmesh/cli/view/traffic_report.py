"""The traffic of one endpoint as a table for people, and as JSON for programs."""

from __future__ import annotations

from typing import Any, TextIO

from slotmesh.cli.snapshot import ShiftStatus, Snapshot
from slotmesh.cli.view.report import console_of, new_table, readiness
from slotmesh.cli.view.shadows import shadow_troubles
from slotmesh.cli.view.shifts import shift_as_json, shift_lines
from slotmesh.spec.model import TrafficPolicy

_NONE = TrafficPolicy(weights={})


def print_traffic(endpoint: str, revision: int, snapshot: Snapshot, shift: ShiftStatus | None, out: TextIO) -> None:
    """Writes the policy, a row a backend, and where it is in force. Colours only where `out` is a terminal."""
    console = console_of(out)
    console.print(f"endpoint {endpoint}  revision {revision}, {_in_force(revision, snapshot)}")
    traffic = snapshot.traffic_of(endpoint)
    if services := _services_of(endpoint, snapshot):
        console.print(f"grpc services: {', '.join(services)}", soft_wrap=True, markup=False, highlight=False)
    if traffic is None:
        console.print("no traffic policy: calls wait until there is one")
        return
    backends = {backend.name: backend for backend in snapshot.backends}
    table = new_table("Traffic", "backend", "weight", "shadow", "ready")
    for name in sorted({*traffic.weights, *traffic.shadows}):
        table.add_row(
            name,
            _share(traffic.weights.get(name)),
            _share(traffic.shadows.get(name)),
            readiness(backends[name], snapshot) if name in backends else "",
        )
    console.print(table)
    for name in sorted(traffic.shadows):
        for told in shadow_troubles(name, snapshot.members):
            console.print(told)
    for line in shift_lines(shift) if shift is not None else ():
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def as_json(endpoint: str, revision: int, snapshot: Snapshot, shift: ShiftStatus | None) -> dict[str, Any]:
    """The same, as values of JSON. `revision` is in force at the routers that are `current`."""
    traffic = snapshot.traffic_of(endpoint)
    shadows = sorted(traffic.shadows) if traffic else []
    behind = snapshot.members.behind(revision)
    return {
        "endpoint": endpoint,
        "revision": revision,
        "traffic": dict(traffic.weights) if traffic else None,
        "shadows": dict(traffic.shadows) if traffic else {},
        "grpc_services": _services_of(endpoint, snapshot),
        "shadow_copies": {name: snapshot.members.shadow(name).copies for name in shadows},
        "shadow_drops": {name: snapshot.members.shadow(name).dropped for name in shadows},
        "shadow_failures": {name: snapshot.members.shadow(name).failed for name in shadows},
        "routers": [
            {"router_id": router.router_id, "address": router.address, "current": router not in behind}
            for router in snapshot.members.routers
        ],
        "shift": None if shift is None else shift_as_json(shift),
    }


def _services_of(endpoint: str, snapshot: Snapshot) -> list[str]:
    """The services of users' own protos that it answers."""
    found = next((it.grpc_services for it in snapshot.endpoints if it.name == endpoint), None)
    return [] if found is None else list(found.names)


def _in_force(revision: int, snapshot: Snapshot) -> str:
    routers = snapshot.members.routers
    if not routers:
        return "no router is attached"
    current = len(routers) - len(snapshot.members.behind(revision))
    return f"in force at {current} of {len(routers)} {'router' if len(routers) == 1 else 'routers'}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.6g}"
