"""Links to replicas that break, over real gRPC: out at once, and back when the replica says that it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.errors import Executed
from tests.support.fakes.replica import hold
from tests.support.router_bench import RouterBench, calls, outcomes, router_bench
from tests.support.tables import linked_ids
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


async def told_links(mesh: RouterBench, *names: str) -> None:
    """Returns when the newest report names these links."""
    await wait_until(lambda: linked_ids(mesh.controller.reports[-1]) == list(names), what=f"links are {names}")


@pytest.mark.asyncio
async def test_a_broken_link_comes_back_by_itself(mesh: RouterBench) -> None:
    broken, other = mesh.replicas
    broken.break_link()
    await wait_until(lambda: len(broken.contexts) == 2, what="it is connected again")
    await told_links(mesh, "r0", "r1")
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 100))
    assert len((await outcomes(call, 100))[0]) == 100
    assert broken.payloads
    assert other.payloads


@pytest.mark.asyncio
async def test_a_replica_that_does_not_serve_is_left_alone_until_it_does(mesh: RouterBench) -> None:
    broken, other = mesh.replicas
    broken.set_serving(False)
    broken.break_link()
    await told_links(mesh, "r1")
    call, number = await mesh.open(), 0
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.5  # several attempts to reach it
    while loop.time() < until:
        number += 1
        await call.write(calls(number, b"x"))
        assert set((await outcomes(call, 1))[0]) == {number}
    assert len(other.payloads) == number, "all go to the one that is left, at once"
    assert len(broken.contexts) == 1
    broken.set_serving(True)
    await told_links(mesh, "r0", "r1")
    assert len(broken.contexts) == 2


@pytest.mark.asyncio
async def test_idempotent_calls_of_a_lost_link_run_elsewhere(mesh: RouterBench) -> None:
    lost, other = mesh.replicas
    lost.answer = hold
    call = await mesh.open()
    await call.write(calls(1, b"1", b"2", idempotent=True))
    await wait_until(lambda: lost.runs and other.runs)
    (again,) = lost.payloads
    lost.break_link()
    done, failed = await outcomes(call, 2)
    assert done == {1: b"1", 2: b"2"}
    assert not failed
    assert again in other.payloads
    assert [run.attempt for run in other.runs if again in run.payloads] == [1]


@pytest.mark.asyncio
async def test_retries_are_bounded_and_the_rest_says_that_it_may_have_run(mesh: RouterBench) -> None:
    lost = mesh.replicas[0]
    await mesh.linked(lost)
    lost.answer = hold
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 10, idempotent=True))
    await wait_until(lambda: lost.runs)
    lost.break_link()
    _, failed = await outcomes(call, 7)
    assert set(failed) == set(range(4, 11)), "three may run again"
    assert {(each.reason, each.executed) for each in failed.values()} == {("REPLICA_LOST", Executed.UNKNOWN.value)}
    await wait_until(lambda: len(lost.payloads) == 13, what="the three come again")
    assert lost.runs[-1].attempt == 1
    await mesh.linked(mesh.replicas[1])
    lost.break_link()
    assert set((await outcomes(call, 3))[1]) == {1, 2, 3}


@pytest.mark.asyncio
async def test_keyed_calls_wait_for_their_owners_link(mesh: RouterBench) -> None:
    owner = mesh.replicas[0]
    await mesh.linked(owner)
    owner.set_serving(False)
    owner.break_link()
    await told_links(mesh)
    call = await mesh.open()
    await call.write(calls(1, b"1", b"2", ordering_key="k"))
    owner.set_serving(True)
    assert (await outcomes(call, 2))[0] == {1: b"1", 2: b"2"}
