"""The identity of a process, as text that other processes on the same machine can check long after it has ended.

Purpose: a controller detects by it that a silent replica, which it did not start, has ended.
Invariants: `has_ended` is true only for a process that would be visible if it were running: of the same boot, in the
same namespaces. An unreadable value proves nothing. A reused process id is recognised by the start time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_ENDED: Final = frozenset({"Z", "X", "x"})
"""States of a process that has ended, and is not reaped yet or is being reaped."""


def own_process() -> str:
    """This process; empty if the operating system lacks the data, as all but Linux do."""
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
    """The id of a running process that was started with this argument; 0 if there is none."""
    for folder in _PROC.glob("[0-9]*"):
        try:
            if argument.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:
            continue  # it has just ended
    return 0


def pid_of(process: str) -> int:
    """The id of a process, in its own namespace; 0 if the text is invalid."""
    pid = process.rpartition(":")[0].rpartition(":")[2]
    return int(pid) if pid.isdecimal() else 0


def has_ended(process: str) -> bool:
    """Whether a process, by its `own_process`, has certainly ended."""
    place, _, rest = process.rpartition(":")
    place, _, pid_text = place.rpartition(":")
    if not place or place != _place() or not (pid_text.isdecimal() and rest.isdecimal()):
        return False
    pid = int(pid_text)
    try:
        os.kill(pid, 0)  # only checks for existence
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # it exists, and belongs to another user
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
        times = ""  # older kernels have no time namespaces
    return f"{boot}:{_number(pids)}:{_number(times)}"


def _is_without_threads(pid: int) -> bool:
    """Whether there is only the main thread, which may end before others, and then looks like an ended process."""
    return len([*(_PROC / str(pid) / "task").iterdir()]) <= 1


def _number(namespace: str) -> str:
    """The number in `pid:[4026531836]`."""
    return namespace.partition("[")[2].rstrip("]")


def _read_stat(pid: int) -> tuple[str, str]:
    """The start time of a process, in ticks since the boot, and its state."""
    text = (_PROC / str(pid) / "stat").read_text("utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        raise ValueError(text)
    return fields[19], fields[0]
