"""How a handler's `on_keys_gained` and `on_keys_lost` are called: one at a time, in order, for a bounded time."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from replica_service.core.events import CallKeyHook, KeysGained, KeysLost
from replica_service.shell.handler.handler_loop import SharedLoop
from replica_service.shell.handler.hooks import Hooks, KeyHooks
from slotmesh.calls.key_hash import partition_of
from slotmesh.handlers.context import OwnedKeys
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Hooked:
    """The hooks of a handler, and the events that answered them."""

    def __init__(self, handler: Any, timeout_s: float = 30.0) -> None:
        self.events: list[tuple[str, str, tuple[int, ...]]] = []
        self.hooks = KeyHooks(Hooks(handler, SharedLoop()), timeout_s, self._post)

    def _post(self, event: KeysGained | KeysLost) -> None:
        self.events.append((type(event).__name__, event.endpoint, tuple(event.partitions)))

    def tell(self, what: str, partition: int, endpoint: str = "e") -> None:
        self.hooks.take(CallKeyHook(endpoint, partition, 1, is_gain=what == "gained"))

    async def until(self, count: int) -> None:
        await wait_until(lambda: len(self.events) >= count, what=f"{count} events")


class Slow:
    """Holds up each hook until the test lets it go."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, dict[int, int]]] = []
        self.go_on = asyncio.Event()

    async def on_keys_gained(self, keys: OwnedKeys) -> None:
        self.told.append(("gained", keys.endpoint, dict(keys.owner_epochs)))
        await self.go_on.wait()

    async def on_keys_lost(self, keys: OwnedKeys) -> None:
        self.told.append(("lost", keys.endpoint, dict(keys.owner_epochs)))
        await self.go_on.wait()


async def test_one_hook_runs_at_a_time_and_what_gathers_shares_the_next() -> None:
    handler = Slow()
    hooked = Hooked(handler)
    for what, partition, endpoint in (
        ("gained", 1, "e"),
        ("gained", 2, "e"),
        ("lost", 1, "e"),
        ("lost", 2, "f"),
        ("lost", 3, "f"),
        ("gained", 1, "e"),
    ):
        hooked.tell(what, partition, endpoint)
    await wait_until(lambda: bool(handler.told))
    assert not hooked.events, "an answer comes when the hook has ended"
    handler.go_on.set()
    await hooked.until(4)
    assert handler.told == [
        ("gained", "e", {1: 1, 2: 1}),
        ("lost", "e", {1: 1}),
        ("lost", "f", {2: 1, 3: 1}),
        ("gained", "e", {1: 1}),
    ]
    assert hooked.events == [
        ("KeysGained", "e", (1, 2)),
        ("KeysLost", "e", (1,)),
        ("KeysLost", "f", (2, 3)),
        ("KeysGained", "e", (1,)),
    ]


async def test_a_hook_that_takes_too_long_is_cancelled_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    handler = Slow()
    hooked = Hooked(handler, timeout_s=0.05)
    with caplog.at_level(logging.ERROR):
        hooked.tell("gained", 1)
        await hooked.until(1)
    assert "on_keys_gained has not ended in time" in caplog.text


class Stuck:
    """Its hook is `def`, and hangs."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def on_keys_lost(self, _keys: OwnedKeys) -> None:
        self.go_on.wait(30)


async def test_a_thread_that_hangs_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    handler = Stuck()
    hooked = Hooked(handler, timeout_s=0.05)
    try:
        with caplog.at_level(logging.ERROR):
            hooked.tell("lost", 1)
            await hooked.until(1)
        assert "on_keys_lost has not ended in time" in caplog.text
    finally:
        handler.go_on.set()


async def test_a_hook_that_the_handler_does_not_have_has_ended_at_once() -> None:
    hooked = Hooked(Stuck())
    hooked.tell("gained", 1)
    await hooked.until(1)
    assert hooked.events == [("KeysGained", "e", (1,))]


async def test_after_the_close_no_hook_is_called() -> None:
    handler = Slow()
    hooked = Hooked(handler)
    hooked.tell("gained", 1)
    await wait_until(lambda: bool(handler.told))
    hooked.tell("lost", 1)
    hooked.hooks.close()
    handler.go_on.set()
    await asyncio.sleep(0)
    assert handler.told == [("gained", "e", {1: 1})]
    assert not hooked.events


async def test_owned_keys_know_their_keys() -> None:
    keys = OwnedKeys("e", {partition_of("ada"): 3})
    assert "ada" in keys
    assert "grace" not in keys
