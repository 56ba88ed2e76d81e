"""How this process runs, as the controller compares it with the settings of its backend.

Invariants: of environment variables only the names are reported; what cannot be read is unknown.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.spec.environment import MAX_FACTS, MAX_NAME_CHARS, MAX_PATH_CHARS

_CGROUPS: Final = Path("/sys/fs/cgroup")


def own_facts() -> membership_service_pb2.ProcessFacts:
    """Those of this process, now."""
    try:
        cwd = str(Path.cwd())
    except OSError:
        cwd = ""  # it was removed
    names = sorted(it for it in os.environ if len(it) <= MAX_NAME_CHARS and it.isascii())
    pinned = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    quota = cpu_quota(_of_cgroup("cpu.max"))
    return membership_service_pb2.ProcessFacts(
        python=_shown(sys.executable),
        prefix=_shown(sys.prefix),
        cwd=_shown(cwd),
        cpus=min(pinned, quota) if pinned and quota else pinned,
        memory=memory_bound(_of_cgroup("memory.max")),
        variables=names[:MAX_FACTS],
    )


def cpu_quota(text: str) -> float:
    """The CPUs of a `cpu.max`: `200000 100000` are 2. 0: no quota, or unknown."""
    quota, _, period = text.partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else 0.0


def memory_bound(text: str) -> int | None:
    """The bytes of a `memory.max`; 0: none. None: unknown."""
    return int(text) if text.isdecimal() else 0 if text == "max" else None


def _of_cgroup(name: str) -> str:
    """A file of the cgroup of this process, in version 2 of cgroups; empty if there is none."""
    try:
        place = Path("/proc/self/cgroup").read_text("ascii").partition("0::")[2].splitlines()[0]
        return (_CGROUPS / place.lstrip("/") / name).read_text("ascii").strip()
    except (OSError, ValueError, IndexError):
        return ""


def _shown(path: str) -> str:
    """Paths of other encodings are no text of a message."""
    return os.fsencode(path).decode("utf-8", errors="replace")[:MAX_PATH_CHARS]
