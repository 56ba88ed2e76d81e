"""Handlers whose constructors raise, or wait until they are let go."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.traffic_handlers import Version


class Broken(Version):
    """No replica of it ever gets ready."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        raise ValueError("the model is not where it should be")


class Gated(Version):
    """Gets ready when something is written into the FIFO `gate`."""

    def __init__(self, name: str, gate: str) -> None:
        super().__init__(name)
        Path(gate).read_bytes()
