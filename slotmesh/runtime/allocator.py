"""How much freed memory a process keeps for the next frames, where the C library is glibc.

Frames of hundreds of kilobytes come and go thousands of times a second. By glibc's own figures each goes back to the
kernel when it is freed, and is mapped, zeroed and faulted in again: a quarter of the processor time of a call with a
payload of 1 KB (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_SETTINGS: Final = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 64 << 20),
    "MALLOC_MMAP_THRESHOLD_": (-3, 4 << 20),
}
"""glibc's environment variable, its parameter of mallopt(3), and our value in bytes: up to 64 MiB that are free at the
end of the heap stay, and blocks of up to 4 MiB, as messages are, come from the heap."""


def keep_freed_memory() -> None:
    """Once, when a process starts. What is set in the environment stays; nothing happens without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for variable, (parameter, value) in _SETTINGS.items():
        if variable not in os.environ:
            mallopt(parameter, value)
