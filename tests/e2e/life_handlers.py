"""Handlers that note contexts of calls and steps of their life; notes go to the file of `SLOTMESH_TEST_RECORDS`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import slotmesh
from tests.support.recorder import Recorder


class Curious:
    """Asks about its calls."""

    def __init__(self) -> None:
        self._records = Recorder.from_environment()
        self._background: set[asyncio.Task[None]] = set()

    async def who(self) -> dict[str, Any]:
        return _known(slotmesh.context())

    def who_in_thread(self) -> dict[str, Any]:
        return _known(slotmesh.context())

    @slotmesh.batch(max_batch_size=8)
    async def who_together(self, names: list[str]) -> list[list[str]]:
        return [[name, call.call_id] for name, call in zip(names, slotmesh.contexts(), strict=True)]

    async def slowly(self, call: str) -> str:
        """Notes each attempt at a call with its key. The first attempt never ends."""
        known = slotmesh.context()
        with self._records.executing(f"{call} {known.attempt} {known.idempotency_key}"):
            if known.attempt == 0:
                await asyncio.Event().wait()
        return known.idempotency_key

    async def refuse(self, code: str) -> None:
        slotmesh.abort(code, "not today", {"until": "tomorrow"})

    async def _secret(self) -> str:
        return "not for you"

    async def on_drain(self) -> None:
        with self._records.executing(f"drain {os.getpid()}"):
            pass


@slotmesh.deployment(health_check_period_s=0.1)
class Steady:
    """Takes new configurations, gets sick at will. Constructed at the third attempt if `flaky`, never if `broken`."""

    def __init__(self, name: str = "nobody", flaky: str = "", broken: str = "") -> None:
        with Recorder.from_environment().executing(f"construct {name} {os.getpid()}"):
            if broken:
                raise RuntimeError(broken)
            if flaky and _attempts(Path(flaky)) < 3:
                raise RuntimeError("not yet")
        self._name = name
        self._is_sick = False

    async def greet(self) -> str:
        return f"{self._name} {os.getpid()}"

    async def fall_sick(self) -> int:
        self._is_sick = True
        return os.getpid()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        if user_config["name"] == "nonsense":
            raise ValueError("I take no nonsense")
        self._name = user_config["name"]

    async def check_health(self) -> bool:
        return not self._is_sick


def _attempts(file: Path) -> int:
    """How often this was asked of the file, this time included."""
    with file.open("ab") as out:
        out.write(b".")
    return file.stat().st_size


def _known(call: slotmesh.CallContext) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "endpoint": call.endpoint,
        "method": call.method,
        "metadata": dict(call.metadata),
        "time_left": call.time_left(),
        "ordering_key": call.ordering_key,
        "session_id": call.session_id,
        "attempt": call.attempt,
        "idempotency_key": call.idempotency_key,
    }
