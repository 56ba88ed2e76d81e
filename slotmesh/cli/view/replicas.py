"""How commands show replicas, the problems of a mesh, and whether a controller leads. Pure.

An error that all replicas of a backend share is printed once. Also printed: crash loops, failed copies of calls for
shadows, and why a controller reconciles nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from slotmesh.cli.console import TableColumns, table_of
from slotmesh.cli.controller_view import (
    FAILED_STATE,
    READY_STATE,
    STARTING_STATE,
    SUSPECT_STATE,
    ControllerStatus,
    Members,
)
from slotmesh.cli.documents import local_time, message_document, word_of
from slotmesh.names import printable_text
from slotmesh.v1 import mesh_pb2

_STYLES: Final = {
    READY_STATE: "green",
    FAILED_STATE: "red",
    SUSPECT_STATE: "yellow",
    mesh_pb2.REPLICA_STATE_DRAINING: "yellow",
    STARTING_STATE: "cyan",
}


def replica_table(replicas: Collection[mesh_pb2.Replica], backends: Collection[str]) -> Table:
    """A row for each replica. `backends`: the names of the configured ones."""
    columns: TableColumns[mesh_pb2.Replica] = {
        "replica": lambda it: it.replica_id,
        "backend": lambda it: it.backend,
        "rank": lambda it: str(it.rank) if it.HasField("rank") else "",
        "state": lambda it: Text(word_of(it, "state"), style=_STYLES.get(it.state, "")),
        "address": lambda it: it.address,
        "pid": lambda it: it.pid,
        "slots": lambda it: it.max_ongoing,
        "since": lambda it: local_time(it, "start_time"),
        "code": lambda it: it.handler_version,
        "version": lambda it: it.version,
        "restarts": _restarts,
        **({"zone": lambda it: it.zone} if any(it.zone for it in replicas) else {}),
        **({"models": _models} if any(it.HasField("models") for it in replicas) else {}),
        **({"devices": lambda it: ", ".join(it.devices)} if any(it.devices for it in replicas) else {}),
        "error or warning": lambda it: _problem(it, backends),
    }
    return table_of("Replicas", columns, replicas)


def device_table(pools: Iterable[mesh_pb2.DevicePool]) -> Table:
    """A row for each device of these pools, with what is free of it and the replicas that hold it."""
    columns: TableColumns[tuple[str, mesh_pb2.PooledDevice]] = {
        "pool": lambda it: it[0],
        "device": lambda it: it[1].name,
        "free": lambda it: f"{it[1].free_share:g}",
        "held by": lambda it: ", ".join(it[1].replica_ids),
    }
    return table_of("Devices", columns, [(pool.name, it) for pool in pools for it in pool.devices])


def _models(replica: mesh_pb2.Replica) -> str:
    """How many are loaded of how many, and the first ones."""
    models = replica.models
    if not replica.HasField("models"):
        return ""
    shown = printable_text(", ".join([*models.ids[:3], *(["…"] if models.count > 3 else [])]))
    return f"{models.count}/{models.most}{': ' if shown else ''}{shown}"


def _restarts(replica: mesh_pb2.Replica) -> str:
    """The number, with the end of the last process unless the row has it as the error."""
    if not replica.restart_count:
        return ""
    how = "" if replica.last_exit in replica.error else f": {replica.last_exit}"
    return f"{replica.restart_count}{how}"


def _problem(replica: mesh_pb2.Replica, backends: Collection[str]) -> Text:
    """The error in a line; otherwise the warning."""
    if error := replica.error.strip():
        return Text(error.splitlines()[-1], style="red")
    if replica.backend not in backends and replica.state in {STARTING_STATE, READY_STATE}:
        return Text(f"no backend {replica.backend}: it gets no calls until that is applied", style="yellow")
    if replica.end_reason:
        return Text(f"ends: {replica.end_reason}", style="yellow")
    return Text(replica.warning.strip().partition("\n")[0], style="yellow")


def replica_document(replica: mesh_pb2.Replica) -> dict[str, Any]:
    """A replica as values of JSON; `last_output` is a list of lines."""
    document = message_document(replica, leave_out={"load"})
    return {**document, "last_output": replica.last_output.splitlines()}


def readiness(ready: int, wanted: int | None) -> Text:
    """The number of replicas of a backend that take calls, and of those that should."""
    enough = ready >= (1 if wanted is None else wanted)
    return Text(f"{ready}/{'any' if wanted is None else wanted}", style="green" if enough else "yellow")


_FRAME: Final = re.compile(r'^ +File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.MULTILINE)
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python", "<frozen ")
"""Parts of names of files that are not the user's."""


LOOPING_AFTER: Final = 3
"""Restarts after which a replica that is not ready is one of a crash loop."""


def crash_loop_lines(replicas: Collection[mesh_pb2.Replica], most_lines: int) -> Iterator[Text]:
    """Backends whose replicas repeatedly end before they are ready, by the most restarted replica of each.

    Also up to `most_lines` that its newest ended process wrote last, unless a replica of the backend has reported an
    error. A backend that does not crash loop yet gets a line that names its log.
    """
    reported = {replica.backend for replica in replicas if is_long(replica.error)}
    worst: dict[str, mesh_pb2.Replica] = {}
    for replica in replicas:
        is_looping = replica.restart_count >= LOOPING_AFTER and replica.state in {FAILED_STATE, STARTING_STATE}
        if is_looping and replica.restart_count >= worst.get(replica.backend, replica).restart_count:
            worst[replica.backend] = replica
    for backend, it in worst.items():
        last_exit = it.last_exit or "ended"
        line = f"{backend} is crash looping: {it.restart_count} restarts; the last process: {last_exit}"
        yield Text(f"\n{line}", style="red")
        if it.last_output and backend not in reported:
            yield from (Text(f"  {line}") for line in it.last_output.splitlines()[-most_lines:])
            yield Text(f"All that it wrote: slotmesh logs {backend}")
    ended = {it.backend for it in replicas if it.state == FAILED_STATE or (it.last_exit and it.state == STARTING_STATE)}
    for backend in sorted(ended - worst.keys() - reported):
        yield Text(f"\nA process of {backend} ended before it was ready; what it wrote: slotmesh logs {backend}")


def trouble_lines(replicas: Iterable[mesh_pb2.Replica]) -> Iterator[Text]:
    """The errors of more than one line, once for all replicas of a backend that have the same."""
    counts = Counter((it.backend, _what(it.error), _place(it.error)) for it in replicas if is_long(it.error))
    for (backend, what, place), count in counts.items():
        yield Text(f"\n{backend}, {count} {'replica' if count == 1 else 'replicas'}: {what}", style="red")
        if place:
            yield Text(f"  at {place}")
    if counts:
        yield Text("\nThe whole tracebacks: slotmesh status --tracebacks")


def is_long(error: str) -> bool:
    """Whether it is more than a line: a traceback."""
    return "\n" in error.strip()


def _what(error: str) -> str:
    """The line of the exception, and what the replica has added below."""
    lines = error.strip().splitlines()
    own = next((at for at in range(len(lines), 0, -1) if lines[at - 1].startswith(" ")), 0)
    end = lines[own:] or lines[-1:]
    return "; ".join(dict.fromkeys((end[0].strip(), end[-1].strip())))


def _place(error: str) -> str:
    """The place of the innermost frame outside of libraries."""
    frames = [match for match in _FRAME.finditer(error) if not any(part in match["file"] for part in _LIBRARIES)]
    if not frames:
        return ""
    frame = frames[-1]
    name = f", in {frame['name']}" if frame["name"] else ""
    return f"{frame['file']}:{frame['line']}{name}"


def shadow_troubles(backend: str, members: Members) -> Iterator[str]:
    """Copies of calls that a shadow did not get, and those that failed there, for a person."""
    shadow = members.shadow(backend)
    if shadow.dropped:
        share = 100 * shadow.dropped / shadow.copies
        yield (
            f"shadow {backend}: {shadow.dropped:,} of {shadow.copies:,} copies of calls ({share:.3g} %) were dropped, "
            "since none of its slots was free; give it more replicas, or a smaller share"
        )
    if shadow.failed:
        share = 100 * shadow.failed / (shadow.copies - shadow.dropped)
        yield (
            f"shadow {backend}: {shadow.failed:,} of the {shadow.copies - shadow.dropped:,} copies that it got"
            f" ({share:.3g} %) failed; its log (`slotmesh logs {backend}`) says why"
        )


def leader_text(status: ControllerStatus | None) -> str:
    """The text after the leading controller's address; empty if the controller does not report its term."""
    if status is None or not status.role.term:
        return ""
    role = status.role
    standbys = f", standby: {', '.join(role.standby_addresses)}" if role.standby_addresses else ""
    since = local_time(role, "leads_since_time", " since %Y-%m-%d %H:%M:%S")
    version = f"version {status.version}, " if status.version else ""
    return f"  {version}leader, term {role.term}{since}{standbys}"


def standby_text(status: ControllerStatus) -> str:
    """A controller that does not lead, in a line."""
    known = status.role.leader_address
    leader = f"{known} leads" if known else "it does not know the leader's address"
    return f"controller {status.address}  standby: {leader}"


def newer_members_text(newer_members: Collection[str]) -> str:
    """Why the controller reconciles nothing; empty if it does."""
    if not newer_members:
        return ""
    return "\n".join(
        (
            "Nothing is reconciled: members know a newer state than the controller's state file.",
            *(f"  {each}" for each in newer_members),
            "Do not start routers again meanwhile: they get no routing table. To go on, either",
            "  stop the controller, put the newest state file back, and start it; or",
            "  slotmesh apply mesh.yaml (the newest), then: slotmesh state adopt --from-members",
            "If this is the newest state file: slotmesh state adopt --discard-members",
        )
    )
