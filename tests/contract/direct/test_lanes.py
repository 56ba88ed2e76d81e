"""Direct lanes of the asyncio client, against a mesh in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import slotmesh
from slotmesh.errors import Executed
from slotmesh.testing import RunningMesh
from tests.contract.direct.lanes_mesh import all_free, open_gates, reserved, schedulers, started
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


async def test_calls_run_one_after_another_in_a_slot_that_is_held(
    mesh: RunningMesh, endpoint: slotmesh.Endpoint
) -> None:
    async with endpoint.direct() as lanes:
        assert await lanes.echo(b"a") == b"a"
        for number in range(20):
            assert await lanes.echo(b"%d" % number) == b"%d" % number
        results = await asyncio.gather(*(lanes.echo(b"%d" % number) for number in range(50)))
        assert results == [b"%d" % number for number in range(50)]
        assert await lanes.thread(b"t") == b"t"
        assert await lanes.upper(b"u") == b"U"
        assert lanes.held == 1
        assert list(reserved(mesh).values()) == [1], "it counts as reserved"
        (holder,) = (each for each in schedulers(mesh).values() if each.in_use)
        assert (holder.in_use, holder.slots.granted) == (1, 1), "one reservation, and one permit, for all of them"
    assert lanes.held == 0
    await all_free(mesh)


async def test_as_many_calls_run_at_once_as_there_are_slots(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    async with endpoint.direct(slots=3) as lanes:
        calls = [lanes.wait(b"%d" % number) for number in range(5)]
        await wait_until(lambda: len(started(mesh)) == 3, what="three calls run")
        assert lanes.held == 3
        assert sum(reserved(mesh).values()) == 3
        assert sum(each.in_use for each in schedulers(mesh).values()) == 3
        open_gates(mesh)
        assert sorted(await asyncio.gather(*calls)) == [b"%d" % number for number in range(5)]


async def test_options_and_types_are_as_elsewhere(mesh: RunningMesh) -> None:
    async with mesh.endpoint("e").direct() as lanes:
        assert await lanes.greet("Ada") == "hello, Ada"
        assert (
            await lanes.greet.returning(str).options(timeout=5, content_type="application/json")("Bob") == "hello, Bob"
        )
        with pytest.raises(TypeError, match="no option ordering_key"):
            lanes.greet.options(ordering_key="k")  # type: ignore[call-arg]
        with pytest.raises(slotmesh.HandlerError) as caught:
            await lanes.method("fail")(b"no")
        assert caught.value.executed is Executed.YES
        with pytest.raises(slotmesh.MethodNotFound) as missing:
            await lanes.nothing()
        assert (missing.value.executed, missing.value.method) == (Executed.NO, "nothing")
        assert lanes.held == 1, "a failure of a call is no failure of its slot"


async def test_a_slot_without_calls_is_given_back(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    lanes = endpoint.direct(slots=2, idle=0.05)
    await asyncio.gather(lanes.echo(b"a"), lanes.echo(b"b"))
    await all_free(mesh)
    assert lanes.held == 0
    assert await lanes.echo(b"c") == b"c", "and another one is reserved"
    await lanes.aclose()


async def test_leases_are_renewed_and_end_when_they_are_not(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    async with endpoint.direct(ttl=1.5, idle=60) as lanes:
        await lanes.echo(b"a")
        (scheduler,) = (each for each in schedulers(mesh).values() if each.in_use)
        ends = asyncio.get_running_loop().time() + 3.2
        await wait_until(lambda: asyncio.get_running_loop().time() > ends, what="two leases are over")
        assert (scheduler.slots.reserved, scheduler.slots.expired) == (1, 0)
        assert await lanes.echo(b"b") == b"b"
        assert scheduler.slots.granted == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"ttl": -1}, "ttl"), ({"ttl": "5"}, "ttl"), ({"idle": -1}, "idle"), ({"slots": 0}, "slots")],
)
async def test_a_wrong_argument_is_named(endpoint: slotmesh.Endpoint, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        endpoint.direct(**arguments)
