"""The errors of replicas, in short: once for all replicas of a backend that have the same; and crash loops. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from slotmesh.cli.snapshot import FAILED, STARTING, ReplicaStatus

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
    """A backend whose replicas end before they are ready, again and again."""

    backend: str
    restarts: int
    last_exit: str
    last_lines: tuple[str, ...]
    """What its newest process that ended has written last; none where replicas of it have said what is wrong."""


def crash_loops_of(replicas: Iterable[ReplicaStatus]) -> list[CrashLoop]:
    """One for each backend where there is any: that of its most restarted replica."""
    replicas = [*replicas]
    told = {replica.backend for replica in replicas if is_long(replica.error)}
    worst: dict[str, ReplicaStatus] = {}
    for replica in replicas:
        is_looping = replica.restart_count >= LOOPING_AFTER and replica.state in {FAILED, STARTING}
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
