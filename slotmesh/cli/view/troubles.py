"""The problems of a mesh as `slotmesh status` prints them, in short. Pure.

An error that all replicas of a backend share is printed once. Also printed: crash loops, failed copies of calls for
shadows, whether a controller leads, and why it reconciles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from slotmesh.cli.snapshot import FAILED_STATE, STARTING_STATE, ControllerStatus, Members, ReplicaStatus

_FRAME: Final = re.compile(r'^ +File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.MULTILINE)
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python", "<frozen ")
"""Parts of names of files that are not the user's."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The same trouble of some replicas of one backend."""

    backend: str
    what: str
    """In a line, as `ValueError: no`."""
    place: str
    """Where in the user's own files, as `/srv/app.py:12, in __init__`; empty where it is not known."""
    replicas: int


LOOPING_AFTER: Final = 3
"""Restarts after which a replica that is not ready is one of a crash loop."""


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """A backend whose replicas repeatedly end before they are ready."""

    backend: str
    restarts: int
    last_exit: str
    last_lines: tuple[str, ...]
    """The last lines of its newest ended process; empty if its replicas have reported an error."""


def crash_loops_of(replicas: Iterable[ReplicaStatus]) -> list[CrashLoop]:
    """At most one for each backend: that of its most restarted replica."""
    replicas = [*replicas]
    told = {replica.backend for replica in replicas if is_long(replica.error)}
    worst: dict[str, ReplicaStatus] = {}
    for replica in replicas:
        is_looping = replica.restart_count >= LOOPING_AFTER and replica.state in {FAILED_STATE, STARTING_STATE}
        if is_looping and replica.restart_count >= worst.get(replica.backend, replica).restart_count:
            worst[replica.backend] = replica
    return [
        CrashLoop(
            backend,
            it.restart_count,
            it.last_exit or "ended",
            () if backend in told else tuple(it.last_output.splitlines()),
        )
        for backend, it in worst.items()
    ]


def troubles_of(replicas: Iterable[ReplicaStatus]) -> list[Trouble]:
    """The errors of more than one line, in the order in which they come."""
    counts: dict[tuple[str, str, str], int] = {}
    for replica in replicas:
        if is_long(replica.error):
            key = replica.backend, _what(replica.error), _place(replica.error)
            counts[key] = counts.get(key, 0) + 1
    return [Trouble(*key, count) for key, count in counts.items()]


def is_long(error: str) -> bool:
    """Whether it is more than a line: a traceback."""
    return "\n" in error.strip()


def _what(error: str) -> str:
    """The line of the exception, and what the replica has added below."""
    lines = error.strip().splitlines()
    own = next((at for at in range(len(lines), 0, -1) if lines[at - 1].startswith(" ")), 0)
    told = lines[own:] or lines[-1:]
    return "; ".join(dict.fromkeys((told[0].strip(), told[-1].strip())))


def _place(error: str) -> str:
    """Of the innermost frame that is no library's."""
    frames = [match for match in _FRAME.finditer(error) if not any(part in match["file"] for part in _LIBRARIES)]
    if not frames:
        return ""
    frame = frames[-1]
    name = f", in {frame['name']}" if frame["name"] else ""
    return f"{frame['file']}:{frame['line']}{name}"


def leader_text(status: ControllerStatus | None) -> str:
    """The text after the leading controller's address; empty if the controller does not report its term."""
    if status is None or not status.term:
        return ""
    standbys = f", standby: {', '.join(status.standby_addresses)}" if status.standby_addresses else ""
    return f"  leader, term {status.term}{standbys}"


def newer_members_text(status: ControllerStatus | None) -> str:
    """Why the controller reconciles nothing; empty if it does."""
    if status is None or not status.newer_members:
        return ""
    return "\n".join(
        (
            "Nothing is reconciled: members know a newer state than the controller's state file.",
            *(f"  {each}" for each in status.newer_members),
            "Do not start routers again meanwhile: they get no routing table. To go on, either",
            "  stop the controller, put the newest state file back, and start it; or",
            "  slotmesh apply mesh.yaml (the newest), then: slotmesh state adopt --from-members",
            "If this is the newest state file: slotmesh state adopt --discard-members",
        )
    )


def standby_text(status: ControllerStatus) -> str:
    """A controller that does not lead, in a line."""
    leader = f"{status.leader_address} leads" if status.leader_address else "where the leader is, it does not know"
    return f"controller {status.address}  standby: {leader}"


def standby_json(status: ControllerStatus) -> dict[str, Any]:
    return {"controller": status.address, "leads": False, "leader": status.leader_address}


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
