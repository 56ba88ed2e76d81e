"""`slotmesh status`: the members of the mesh and their state."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, TextIO, TypeAlias

import typer
from rich.console import Console
from rich.text import Text

from slotmesh.cli.checking.findings import LostMember
from slotmesh.cli.checking.losses import lost_members, lost_text, still_lost
from slotmesh.cli.console import (
    FAILED,
    AsJson,
    CommandFailed,
    Output,
    OutputForm,
    Printable,
    TableColumns,
    console_of,
    form_of,
    table_of,
)
from slotmesh.cli.controller_view import ControllerStatus, Members, Snapshot, is_waiting
from slotmesh.cli.documents import local_text, message_document, time_of, word_of
from slotmesh.cli.figures import NO_FIGURES, MeshFigures, figures_of, row_name, shown_rate
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import BACKEND, CONTROLLER, ENDPOINT, REPLICA, ROUTER, ControllerAddress
from slotmesh.cli.shifting import waiting_line
from slotmesh.cli.view.changes import deferred_line, rollout_document, rollout_lines
from slotmesh.cli.view.replicas import (
    crash_loop_lines,
    device_table,
    is_long,
    leader_text,
    newer_members_text,
    readiness,
    replica_document,
    replica_table,
    shadow_troubles,
    standby_text,
    trouble_lines,
)
from slotmesh.errors import NotLeader
from slotmesh.names import printable_text
from slotmesh.spec.model import Backend, Endpoint
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.info_service_pb2 import ControllerStanding

LINES_SHOWN: Final = 5
"""Of what the last process of a crash loop has written."""


async def status(
    as_document: AsJson = False,
    output: Output = OutputForm.TABLE,
    tracebacks: Annotated[
        bool, typer.Option("--tracebacks", help="Print the whole errors of replicas below the tables.")
    ] = False,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show endpoints, backends, replicas and routers.

    Replicas that failed are listed with their error. Below the tables is where it comes from, once for all replicas of
    a backend that have the same; `--tracebacks` prints all of each, as JSON and YAML always do. A router whose
    table is not `current` has not received the newest change yet. Calls a second are of the last 2 to 3 seconds, and
    empty if unknown. `slotmesh top` shows more of that. If the controller stands by for another one, this shows what
    that one knows; if it does not answer, its name is all that is shown: exit status 1.
    """
    form = form_of(output, as_document)
    state, load, lost = await _query(address)
    if isinstance(state, ControllerStatus):
        Printable(
            table=lambda out: print(printable_text(standby_text(state)), file=out),
            document=lambda: {"controller": state.address, "leads": False, "leader": state.role.leader_address},
            names=tuple,
        ).write(form)
        raise typer.Exit(FAILED)
    address = state.controller.address if state.controller is not None else address
    Printable(
        table=partial(print_tables, address, state, tracebacks=tracebacks, load=load, lost=lost),
        document=partial(status_document, address, state, load, lost),
        names=partial(_names, state),
    ).write(form)


async def _query(address: str) -> tuple[Snapshot | ControllerStatus, MeshFigures, Sequence[LostMember]]:
    """The mesh, its load and its lost members; or that the controller stands by."""
    async with Operator.at(address) as operator:
        try:
            snapshot = await operator.snapshot()
        except NotLeader:
            standing = await operator.standing()
            if not standing.role.leads:
                return standing, NO_FIGURES, ()
            snapshot = await operator.snapshot()  # it leads since a moment ago
        lost = still_lost(await lost_members(operator), snapshot.members, time.time())
        return snapshot, await _load(operator), lost


async def _load(operator: Operator) -> MeshFigures:
    """Unknown if the controller does not answer."""
    try:
        return figures_of(await operator.sample())
    except CommandFailed:
        return NO_FIGURES


def _names(snapshot: Snapshot) -> list[str]:
    return [
        *(f"{ENDPOINT}/{it.name}" for it in snapshot.endpoints),
        *(f"{BACKEND}/{it.name}" for it in snapshot.backends),
        *(f"{REPLICA}/{it.replica_id}" for it in snapshot.members.replicas),
        *(f"{ROUTER}/{it.router_id}" for it in snapshot.members.routers),
    ]


def status_document(
    address: str, snapshot: Snapshot, load: MeshFigures = NO_FIGURES, lost: Sequence[LostMember] = ()
) -> dict[str, Any]:
    """The mesh as values of JSON. Replicas, routers and rollouts are the messages of these names."""
    members, kinds = snapshot.members, ((ENDPOINT, load.endpoints), (BACKEND, load.backends), (ROUTER, load.routers))
    loads = {(kind, row_name(it)): it for kind, rows in kinds for it in rows}

    def load_of(kind: str, name: str) -> dict[str, float | None]:
        """Null if unknown."""
        row = loads.get((kind, name), {})
        rate = row.get("calls_per_s")
        return {"calls_per_s": None if rate is None else round(rate, 3), "queued": row.get("queued")}

    def endpoint_document(it: Endpoint) -> dict[str, Any]:
        traffic = dict(sorted(it.traffic.weights.items())) if it.traffic else None
        shadows = dict(sorted(it.traffic.shadows.items())) if it.traffic else {}
        return {"name": it.name, "traffic": traffic, "shadows": shadows, **load_of(ENDPOINT, it.name)}

    def backend_document(it: Backend) -> dict[str, Any]:
        shadow = members.shadow(it.name)
        return {
            "name": it.name,
            "handler": it.handler,
            "ready_replicas": len(members.ready(it.name)),
            "attached_replicas": len(members.attached(it.name)),
            "num_replicas": it.num_replicas,
            "wanted_replicas": snapshot.wanted(it),
            "deferred_start": snapshot.deferred_starts.get(it.name, ""),
            **load_of(BACKEND, it.name),
            "shadow_copies": shadow.copies,
            "shadow_drops": shadow.dropped,
            "shadow_failures": shadow.failed,
        }

    def router_document(it: mesh_pb2.Router) -> dict[str, Any]:
        return {
            **message_document(it, leave_out={"loads", "endpoint_loads"}),
            "current": members.is_current(it),
            "linked_replica_ids": sorted(it.linked_replica_ids),
            "links_subset": it.links_subset,
            "unlinked_replica_ids": sorted(it.unlinked_replica_ids),
            "unknown_balancers": [*it.unknown_balancers],
            **load_of(ROUTER, it.router_id),
        }

    return {
        "controller": address,
        **_leader_document(snapshot.controller or ControllerStatus(address, ControllerStanding(leads=True))),
        "generation": members.generation,
        "table_revision": members.table_revision,
        "revision": snapshot.revision,
        "endpoints": [*map(endpoint_document, snapshot.endpoints)],
        "backends": [*map(backend_document, snapshot.backends)],
        "rollouts": [*map(rollout_document, snapshot.rollouts)],
        "replicas": [*map(replica_document, members.replicas)],
        "routers": [*map(router_document, members.routers)],
        "device_pools": [*map(message_document, snapshot.device_pools)],
        "lost": [{"subject": it.subject, "reason": it.why} for it in lost],
    }


def _leader_document(controller: ControllerStatus) -> dict[str, Any]:
    leads_since = time_of(role := controller.role, "leads_since_time")
    return {
        "leads": True,
        "version": controller.version,
        "term": role.term,
        "leads_since": None if leads_since is None else leads_since.isoformat(),
        "store_problem": role.store_problem,
        "standbys": list(role.standby_addresses),
        "newer_members": list(role.newer_members),
    }


def print_tables(
    address: str,
    snapshot: Snapshot,
    out: TextIO,
    *,
    tracebacks: bool = False,
    load: MeshFigures = NO_FIGURES,
    lost: Sequence[LostMember] = (),
) -> None:
    """Writes the tables, then the long error texts of replicas. Colours only where `out` is a terminal.

    The gist of a traceback is written once for all replicas of a backend that have the same; with `tracebacks` each as
    a whole.
    """
    console, members = console_of(out), snapshot.members
    state = "on hold" if snapshot.is_on_hold else f"revision {snapshot.revision}"
    console.print(f"controller {address}{leader_text(snapshot.controller)}  {state}")
    if snapshot.controller is not None and (problem := snapshot.controller.role.store_problem):
        console.print(Text(f"The state cannot be written, and changes are refused: {problem}", style="red"))
    if snapshot.controller is not None and (lines := newer_members_text(snapshot.controller.role.newer_members)):
        console.print(Text(lines, style="red"))
    _print_tables(console, snapshot, status_document(address, snapshot, load))
    for line in () if tracebacks else (*trouble_lines(members.replicas), *_unknown_balancers(members)):
        console.print(line)
    for name in sorted({name for it in snapshot.endpoints if it.traffic for name in it.traffic.shadows}):
        for trouble in shadow_troubles(name, members):
            console.print(Text(f"\n{trouble}", style="yellow"))
    for member in lost:
        console.print(Text(f"\n{lost_text(member)}", style="red"))
    for name, why in snapshot.deferred_starts.items():
        console.print(Text(f"\n{deferred_line(name, why)}", style="yellow"))
    waiting = (waiting_line(it) for it in snapshot.shifts if is_waiting(it))
    for text in (*rollout_lines(snapshot.rollouts), *waiting):
        console.print(Text(f"\n{text}", style="yellow"))
    for replica in members.replicas:
        if tracebacks and is_long(replica.error):
            console.print(Text(f"\n{replica.replica_id}, {word_of(replica, 'state')}:", style="red"))
            console.print(Text(replica.error.rstrip()))
        if is_long(replica.warning):
            console.print(Text(f"\n{replica.replica_id}:", style="yellow"))
            console.print(Text(replica.warning.rstrip()))
    for line in crash_loop_lines(members.replicas, sys.maxsize if tracebacks else LINES_SHOWN):
        console.print(line)


def _unknown_balancers(members: Members) -> Iterator[Text]:
    for router in members.routers:
        if lacking := ", ".join(router.unknown_balancers):
            words = f"{router.router_id} does not have balancer {lacking}, and uses least_loaded: see its --balancers"
            yield Text(f"\n{words}", style="yellow")


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.6g}" for name, share in sorted(shares.items()))


def _table(router: Mapping[str, Any]) -> Text:
    is_current, ends = router["current"], f", ends: {router['end_reason']}" if router["end_reason"] else ""
    text = f"{router['table_revision']} {'current' if is_current else 'behind'}{ends}"
    return Text(text, style="green" if is_current and not ends else "yellow")


_Row: TypeAlias = Mapping[str, Any]
_LOAD: Final[TableColumns[_Row]] = {
    "calls/s": lambda it: shown_rate(it["calls_per_s"]),
    "queue": lambda it: "" if it["queued"] is None else f"{it['queued']:,}",
}
_ENDPOINTS: Final[TableColumns[_Row]] = {
    "endpoint": lambda it: it["name"],
    "traffic": lambda it: "none: calls wait" if it["traffic"] is None else _shares(it["traffic"]),
    "shadows": lambda it: _shares(it["shadows"]),
    **_LOAD,
}
_BACKENDS: Final[TableColumns[_Row]] = {
    "backend": lambda it: it["name"],
    "handler": lambda it: it["handler"],
    "ready": lambda it: readiness(it["ready_replicas"], it["wanted_replicas"]),
    "attached": lambda it: str(it["attached_replicas"]),
    **_LOAD,
}


def _print_tables(console: Console, snapshot: Snapshot, document: dict[str, Any]) -> None:
    ready = snapshot.members.ready()

    def links(router: _Row) -> Text:
        linked = len(ready.intersection(router["linked_replica_ids"]))
        lacks = ready.intersection(router["unlinked_replica_ids"]) if router["links_subset"] else linked < len(ready)
        return Text(f"{linked}/{len(ready)}", style="yellow" if lacks else "green")

    routers: TableColumns[_Row] = {
        "router": lambda it: it["router_id"],
        "address": lambda it: it["address"],
        "table": _table,
        "links": links,
        "pid": lambda it: it["pid"],
        "since": lambda it: local_text(it["start_time"]),
        "version": lambda it: it["version"],
        **_LOAD,
    }
    console.print(table_of("Endpoints", _ENDPOINTS, document["endpoints"]))
    console.print(table_of("Backends", _BACKENDS, document["backends"]))
    console.print(replica_table(snapshot.members.replicas, {backend.name for backend in snapshot.backends}))
    console.print(table_of("Routers", routers, document["routers"]))
    if snapshot.device_pools:
        console.print(device_table(snapshot.device_pools))
