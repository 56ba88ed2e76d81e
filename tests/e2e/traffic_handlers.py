"""Backends that tell each other apart: the name of each is an argument of its constructor."""

from __future__ import annotations

from tests.support.recorder import Recorder


class Version:
    """One version of a handler."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def name(self, call: int) -> str:
        return self._name


class RecordedVersion(Version):
    """Records each execution, with its backend's name as the key."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._records = Recorder.from_environment()

    async def take(self, call: bytes) -> bytes:
        """The call's number, in digits."""
        with self._records.executing(int(call), key=self._name):
            return self._name.encode()
