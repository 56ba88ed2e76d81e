"""Routers that are lost and do not come back: *not executed* is said of calls alone that no router has read.

A call that a router has read may have been executed, whichever router was lost then and whoever refused afterwards. So
each way to make calls meets each way to lose routers, and what routers have read decides what callers may be told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

import slotmesh
from slotmesh.codec import MSGPACK, decode
from slotmesh.errors import Executed, Failure, Reason
from tests.support.fakes.router import FakeRouter
from tests.support.tiers import long

pytestmark = pytest.mark.asyncio

CALLS: Final = 12
WINDOW: Final = 5
"""So many calls are read by a router, and the others are not."""
PATIENCE_S: Final = 0.3
"""For a router that is not there."""

Outcomes = dict[int, object]
Face = Callable[[slotmesh.Endpoint], Awaitable[Outcomes]]
Loss = Callable[[FakeRouter, FakeRouter], Awaitable[None]]


async def _each(calls: Sequence[Awaitable[Any]]) -> Outcomes:
    return dict(enumerate(await asyncio.gather(*calls, return_exceptions=True)))


async def _first_value(values: Any) -> object:
    return await anext(aiter(values))


async def _map(view: Any) -> Outcomes:
    return dict(enumerate(await view.echo.map(range(CALLS), return_exceptions=True)))


FACES: Final[dict[str, Face]] = {
    "calls": lambda it: _each([it.echo(number) for number in range(CALLS)]),
    "idempotent": lambda it: _each([it.options(idempotent=True).echo(number) for number in range(CALLS)]),
    "lane": lambda it: _each([it.ordered("key").echo(number) for number in range(CALLS)]),
    "lanes": lambda it: _each([it.ordered(f"key-{number % 3}").echo(number) for number in range(CALLS)]),
    "no reply": lambda it: _each([it.options(reply=False).echo(number) for number in range(CALLS)]),
    "iterations": lambda it: _each([_first_value(it.echo.stream(number)) for number in range(CALLS)]),
    "map": _map,
    "map of a lane": lambda it: _map(it.ordered("key")),
}


async def killed(first: FakeRouter, second: FakeRouter) -> None:
    await second.stop()
    await first.stop()


async def silent_then_killed(first: FakeRouter, second: FakeRouter) -> None:
    first.mute = second.silent = True
    first.break_streams()
    await second.stop()
    await first.stop()


async def left_then_killed(first: FakeRouter, second: FakeRouter) -> None:
    await second.stop()
    first.go_away()
    await first.stop()


async def the_next_one_is_killed_too(first: FakeRouter, second: FakeRouter) -> None:
    """It resumes the session, as far as there are sessions, and reads what is sent again."""
    await first.stop()
    await second.until(lambda: second.calls() > 0)
    await second.stop()


async def the_next_one_rejects_what_is_sent_again(first: FakeRouter, second: FakeRouter) -> None:
    """It is right for itself that nothing was executed."""
    await first.stop()
    await second.until(lambda: bool(second.waiting))
    for stream, batch in second.waiting:
        stream.reject(batch, Failure(reason=Reason.QUEUE_FULL, message="full"))
    await asyncio.sleep(0)  # what was said is written before the stream breaks
    await second.stop()


LOSSES: Final[dict[str, Loss]] = {
    it.__name__: it
    for it in (
        killed,
        silent_then_killed,
        left_then_killed,
        the_next_one_is_killed_too,
        the_next_one_rejects_what_is_sent_again,
    )
}


def read_by(*routers: FakeRouter) -> set[int]:
    """The numbers of the calls that have arrived anywhere."""
    payloads = [payload for router in routers for batch in router.batches for payload in batch.payloads]
    return {int(decode(MSGPACK, payload)[0]) for payload in payloads}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "face", ["calls", "idempotent", "lane", "no reply", "iterations", "map", long("lanes"), long("map of a lane")]
)
async def test_of_what_a_router_has_read_nobody_is_told_that_it_was_not_executed(face: str, loss: str) -> None:
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(FakeRouter(window_calls=WINDOW)) for _ in range(2)]
        first.held = second.held = True
        addresses = f"{first.address},{second.address}"
        mesh = await stack.enter_async_context(slotmesh.connect(addresses, connect_timeout=PATIENCE_S))
        calling = asyncio.ensure_future(FACES[face](mesh.endpoint("digits")))
        await first.until(lambda: first.calls() >= WINDOW)
        await LOSSES[loss](first, second)
        async with asyncio.timeout(30):
            outcomes = await calling
        # What the second router alone has read and rejected was not executed: it knows.
        read = read_by(first) if "rejects" in loss else read_by(first, second)
    assert WINDOW <= len(read) < CALLS or loss.startswith("the_next_one"), "some were read, and some were not"
    assert len(outcomes) == CALLS
    for number, outcome in outcomes.items():
        assert isinstance(outcome, slotmesh.SlotmeshError), (number, outcome)
        if number in read:
            assert outcome.executed is Executed.UNKNOWN, (number, outcome)
        elif loss == "killed":
            assert outcome.executed is Executed.NO, f"{number} never left the client: {outcome}"
