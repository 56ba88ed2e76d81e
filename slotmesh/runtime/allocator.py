"""What the C library does with freed memory, so that messages do not get new pages each time.

Purpose: by default glibc returns blocks of hundreds of kilobytes, thousands a second, to the kernel when they are
freed; they are mapped, zeroed and faulted in again. That is a quarter of the processor time of a call with a payload of
1 KB, and up to half of a client's with 1 MB (docs/performance.md).
"""

from __future__ import annotations

import os
from typing import Final

_SETTINGS: Final = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 64 << 20),
    "MALLOC_MMAP_THRESHOLD_": (-3, 4 << 20),
}
"""glibc's environment variable, its parameter of mallopt(3), and the value in bytes: up to 64 MiB of free memory at the
end of the heap is kept, and blocks of up to 4 MiB, the size of messages, come from the heap."""

_LARGEST_BYTES: Final = (32 << 20) - (64 << 10)
"""Just below the largest block from which glibc adapts its thresholds."""


def keep_freed_memory() -> None:
    """For a process of the mesh, when it starts. Keeps values of the environment; has no effect without glibc."""
    import ctypes  # noqa: PLC0415 - applications do without it

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for variable, (parameter, value) in _SETTINGS.items():
        if variable not in os.environ:
            mallopt(parameter, value)


def adapt_to_messages() -> None:
    """For an application: glibc adapts its thresholds, as it does by itself once the process has freed a large block.

    Then blocks of up to 32 MiB come from the heap, of which up to 64 MiB are kept. No page of this block is touched
    but the first. Without effect if a threshold was set, by the environment or mallopt(3), and without glibc.
    """
    bytes(_LARGEST_BYTES)
