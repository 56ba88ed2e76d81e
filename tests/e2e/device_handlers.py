"""Handlers that hold a lock on each of their devices for their whole life: a second holder finds it taken."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Holder:
    """Writes each device that it sees, and each that it finds taken, to files of the folder."""

    def __init__(self, folder: str, variable: str, places: int = 1, version: int = 0) -> None:
        """`places`: the number of replicas that may share a device."""
        self.folder, self.version = Path(folder), version
        self.devices = [it for it in os.environ.get(variable, "").split(",") if it]
        self._locks = [self._lock(variable, device, places) for device in self.devices]
        self._write("seen", f"{variable} {','.join(self.devices)}")

    def _lock(self, variable: str, device: str, places: int) -> int:
        for place in range(places):
            lock = os.open(self.folder / f"{variable}-{device}-{place}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return lock
        self._write("taken", f"{variable} {device}")
        raise RuntimeError(f"{device} is taken")

    def _write(self, name: str, text: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {text}\n")

    async def see(self) -> list[str]:
        return self.devices
