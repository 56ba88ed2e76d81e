"""The identity of a process, as a text that others on the same machine can check, long after it has ended.

Purpose: by it a controller knows that a silent replica which it did not start has ended.
Invariants: `has_ended` is true only for a process that would be seen if it were there: of the same boot, in the same
namespaces. A value that cannot be read proves nothing. A process id that was used again is told apart by the start
time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_ENDED: Final = frozenset({"Z", "X", "x"})
"""States of what has ended, and was not reaped yet or is just being."""


def own_process() -> str:
    """This process; empty where the machine does not have it, as anywhere but on Linux."""
    return process_of(os.getpid())


def process_of(pid: int) -> str:
    """A process in the namespaces of this one, which must not have been reaped; empty as for `own_process`."""
    try:
        started_at, _ = _read_stat(pid)
    except (OSError, ValueError):
        return ""
    place = _place()
    return f"{place}:{pid}:{started_at}" if place else ""


def find_by_argument(argument: str) -> int:
    """The id of a process that was started with this argument and has not ended; 0 where there is none."""
    for folder in _PROC.glob("[0-9]*"):
        try:
            if argument.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:
            continue  # it has ended meanwhile
    return 0


def pid_of(process: str) -> int:
    """The id of a process, in its own namespace; 0 where the text is none."""
    pid = process.rpartition(":")[0].rpartition(":")[2]
    return int(pid) if pid.isdecimal() else 0


def has_ended(process: str) -> bool:
    """Whether it is certain that a process, by its `own_process`, has ended."""
    place, _, rest = process.rpartition(":")
    place, _, pid_text = place.rpartition(":")
    if not place or place != _place() or not (pid_text.isdecimal() and rest.isdecimal()):
        return False
    pid = int(pid_text)
    try:
        os.kill(pid, 0)  # asks, and sends nothing
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # it is there, and another user's
    try:
        started_at, state = _read_stat(pid)
        return started_at != rest or (state in _ENDED and _is_without_threads(pid))
    except (OSError, ValueError):
        return False


def _place() -> str:
    """The machine's boot, and the namespaces in which process ids and start times count; empty where unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        pids = str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""
    try:
        times = str((_PROC / "self/ns/time").readlink())
    except OSError:
        times = ""  # older kernels have one for all
    return f"{boot}:{_number(pids)}:{_number(times)}"


def _is_without_threads(pid: int) -> bool:
    """A main thread may end before others do, and looks like a process that has ended."""
    return len([*(_PROC / str(pid) / "task").iterdir()]) <= 1


def _number(namespace: str) -> str:
    """Of `pid:[4026531836]`."""
    return namespace.partition("[")[2].rstrip("]")


def _read_stat(pid: int) -> tuple[str, str]:
    """When a process started, in ticks since the boot, and its state."""
    text = (_PROC / str(pid) / "stat").read_text("utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        raise ValueError(text)
    return fields[19], fields[0]
