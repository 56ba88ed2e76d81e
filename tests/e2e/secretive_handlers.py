"""Handlers that hold secrets wherever a log could show them, and raise wherever they can.

No line of code that a traceback shows has a secret in it: they are taken from `SECRETS`, and from what is sent. What
is raised for a call, or left behind by one, quotes it, as `int(item)` does; what is raised at the start, by a health
check and the like quotes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import slotmesh

SECRETS: Final = {
    place: f"hush-{place}-5d0b9c"
    for place in ("argument", "metadata", "key", "shard", "config", "local", "cause", "context", "task", "callback")
}


def fail(kind: str, *held: object) -> None:
    """Raises an exception with a cause and a context, from frames that hold secrets."""
    password, arguments = SECRETS["local"], held
    try:
        _inner(SECRETS["cause"])
    except LookupError as error:
        try:
            _inner(SECRETS["context"])
        except LookupError:
            del password, arguments
            password = SECRETS["local"]
            raise ValueError(f"planned: {kind}") from error


def quote(kind: str, *held: object) -> None:
    """Raises an exception that has what is held in its own text, its notes, and in that of its cause."""
    try:
        raise KeyError(*held)
    except KeyError as error:
        try:
            fail(kind, *held)
        except ValueError:
            quoting = ValueError(f"planned: {kind} {held}")
            quoting.add_note(f"it was {held}")
            raise quoting from error


def _inner(password: str) -> None:
    if password:
        raise LookupError("planned, too")


def weight(item: str) -> float:
    if item == SECRETS["argument"]:
        quote("size", item)
    return 1.0


@slotmesh.deployment(health_check_period_s=0.1)
class Secretive:
    """Raises in every kind of method, and whatever the replica calls of it."""

    def __init__(self, password: str = "", stage: str = "") -> None:
        self._password, self._stage = password, stage
        if stage == "construct":
            fail("construct", password)
        self._tasks: set[asyncio.Task[None]] = set()

    async def coroutine(self, item: str) -> None:
        await asyncio.sleep(0)
        quote("coroutine", item, slotmesh.context().metadata)

    async def at_once(self, item: str) -> None:
        quote("at_once", item)

    def threaded(self, item: str) -> None:
        quote("threaded", item)

    @slotmesh.batch(max_batch_size=4)
    async def batched(self, items: list[str]) -> list[str]:
        quote("batched", items)
        return items

    @slotmesh.batch(max_batch_size=4)
    def batched_in_thread(self, items: list[str]) -> list[str]:
        quote("batched_in_thread", items)
        return items

    @slotmesh.batch(max_batch_size=4, batch_size_fn=weight)
    async def weighed(self, items: list[str]) -> list[str]:
        return items

    async def generated(self, item: str) -> AsyncIterator[str]:
        yield item
        quote("generated", item)

    def generated_in_thread(self, item: str) -> Iterator[str]:
        yield item
        quote("generated_in_thread", item)

    async def left_behind(self, item: str) -> None:
        """What fails when nobody waits for it."""

        async def work(held: str) -> None:
            quote("task", held)

        asyncio.get_running_loop().call_soon(quote, "callback", SECRETS["callback"])
        asyncio.get_running_loop().create_task(work(SECRETS["task"]))

    async def number(self, item: int) -> int:
        return item

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        self._stage = user_config["stage"]
        if self._stage == "reconfigure":
            fail("reconfigure", user_config)

    async def check_health(self) -> None:
        if self._stage == "sick":
            fail("check_health", self._password)

    async def on_drain(self) -> None:
        fail("on_drain", self._password)


@slotmesh.deployment(health_check_period_s=0.1, own_loop=True)
class SecretiveOnItsOwnLoop(Secretive):
    """The same, on a loop of its own."""
