"""What the services log, as lines of the trace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simulation.mesh.loop import NodeLoop

_NOISE = ("listening", "serving", "not serving", "stopped")


class _Lines(logging.Handler):
    def __init__(self, note: Callable[[str, str], None]) -> None:
        super().__init__(logging.INFO)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(_NOISE):
            return
        loop = NodeLoop.running
        self._note(loop.name if loop is not None else "", f"{record.levelname.lower()}: {text}")


@contextmanager
def logs_in_trace(note: Callable[[str, str], None] | None) -> Iterator[None]:
    """Within the block what is logged is noted, too."""
    if note is None:
        yield
        return
    handler, root, level = _Lines(note), logging.getLogger(), logging.getLogger().level
    others = root.handlers[:]
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = others
        root.setLevel(level)
