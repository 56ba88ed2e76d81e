"""Lanes that stop, through a whole mesh: what a caller gave up, or had no more time for, is where its lane ends."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable

import pytest

import slotmesh
import slotmesh.testing
from slotmesh.errors import SlotmeshError
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

TIMEOUT_S = 0.05
ROOMY_TIMEOUT_S = 2.0
"""Long enough for a call to start on a busy machine."""


class Handler:
    def __init__(self) -> None:
        self.started: list[int] = []
        self.gate = threading.Event()

    def threaded(self, number: int) -> int:
        self.started.append(number)
        self.gate.wait(10)
        return number

    async def stubborn(self, number: int) -> int:
        """Goes on when it is cancelled."""
        self.started.append(number)
        while not self.gate.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue
        return number

    async def about_as_long_as_its_timeout(self, number: int) -> int:
        self.started.append(number)
        if not number % 4:
            await asyncio.sleep(TIMEOUT_S + random.uniform(-0.005, 0.005))
        return number


@slotmesh.deployment(own_loop=True)
class OnItsOwnLoop(Handler):
    pass


async def outcome(call: Awaitable[int]) -> int | str:
    """The result, or the reason of the failure."""
    try:
        return await call
    except SlotmeshError as error:
        return error.reason.value
    except asyncio.CancelledError:
        return "gave up"


@pytest.mark.parametrize("handler", [Handler, OnItsOwnLoop])
@pytest.mark.parametrize("method", ["threaded", "stubborn"])
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_nothing_runs_behind_a_call_that_goes_on_when_it_is_taken_back(
    handler: type[Handler], method: str, how: str
) -> None:
    async with slotmesh.testing.mesh({"handler": handler}) as mesh:
        endpoint = mesh.endpoint("handler")
        (instance,) = mesh.instances("handler")
        lane = endpoint.ordered("k", after_failure="stop")
        first = getattr(lane, method).options(timeout=ROOMY_TIMEOUT_S if how == "timeout" else 30.0)(0)
        rest = [getattr(lane, method)(number) for number in (1, 2, 3)]
        await wait_until(lambda: instance.started == [0])
        if how == "cancel":
            first.cancel()
        assert await outcome(first) == ("DEADLINE_RUNNING" if how == "timeout" else "gave up")
        later: list[asyncio.Future[int]] = []

        def is_refused() -> bool:
            """Whether calls that are made now fail at once: then the client has heard that the lane has stopped."""
            later.append(getattr(lane, method)(4))
            return any(call.done() for call in later)

        await wait_until(is_refused)
        instance.gate.set()
        assert {await outcome(call) for call in [*rest, *later]} == {"PREDECESSOR_FAILED"}
        assert instance.started == [0]


@pytest.mark.parametrize("handler", [Handler, OnItsOwnLoop])
async def test_whatever_becomes_of_a_call_that_takes_about_as_long_as_its_timeout_the_others_agree(
    handler: type[Handler],
) -> None:
    async with slotmesh.testing.mesh({"handler": handler}) as mesh:
        endpoint = mesh.endpoint("handler").options(timeout=TIMEOUT_S)
        (instance,) = mesh.instances("handler")

        async def four(first: int) -> None:
            lane = endpoint.ordered(f"k{first}", after_failure="stop")
            calls = [lane.about_as_long_as_its_timeout(first + at) for at in range(4)]
            outcomes = [await outcome(call) for call in calls]
            began = [number for number in range(first, first + 4) if number in instance.started]
            done = [number for number in outcomes if isinstance(number, int)]
            assert done == list(range(first, first + len(done))), outcomes
            assert began == list(range(first, first + len(began)))
            assert len(began) <= len(done) + 1, f"{began} have started: {outcomes}"

        await asyncio.gather(*(four(4 * number) for number in range(60)))
