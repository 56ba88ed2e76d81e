"""How quick calls are, from a real replica to a router, and what a real router makes of it."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.internal.v1 import replica_service_pb2
from tests.support.replicas import running_replica
from tests.support.router_bench import calls, outcomes, router_bench

pytestmark = pytest.mark.asyncio

BATCHING = "tests.contract.batching_handlers:Batching"


async def test_a_router_hears_how_quick_calls_are_before_their_first_results() -> None:
    async with running_replica() as replica, replica.router() as stream:
        await stream.send(stream.run([b"x"] * 4))
        await stream.wait_answers(4)
        kinds = [kind for kind in stream.frames if kind not in ("heartbeat", "capacity")]
        assert kinds[:3] == ["opened", "service_times", "results"]
        (told,) = stream.service_times[0].methods
        assert told.method == "echo"
        assert told.service_time.ToNanoseconds() >= 1000
        assert told.batch_size == 0


async def test_a_batch_method_says_how_many_calls_it_takes_at_once() -> None:
    async with running_replica(BATCHING) as replica, replica.router() as stream:
        await stream.send(stream.run([b"a"] * 4, method="gathered"))
        await stream.wait_answers(4)
        (told,) = stream.service_times[0].methods
        assert (told.method, told.batch_size) == ("gathered", 4)


async def test_a_router_sends_a_run_to_one_replica_once_all_say_that_its_calls_are_quick() -> None:
    async with router_bench() as mesh:
        call = await mesh.open()
        assert len(mesh.replicas) > 1

        async def run(first: int) -> list[int]:
            """How many of a hundred calls each replica gets."""
            before = [len(replica.payloads) for replica in mesh.replicas]
            await call.write(calls(first, *[b"x"] * 100))
            await outcomes(call, 100)
            return [len(replica.payloads) - had for replica, had in zip(mesh.replicas, before, strict=True)]

        assert min(await run(1)) > 0, "nothing is known yet"
        told = replica_service_pb2.ServiceTimes()
        told.methods.add().service_time.FromNanoseconds(2000)
        for replica in mesh.replicas:
            await replica.say(replica_service_pb2.ExecuteResponse(service_times=told))
        first = 101
        async with asyncio.timeout(10):
            while max(await run(first)) < 100:  # the word may arrive after the calls
                first += 100


@pytest.mark.parametrize("own_loop", [False, True], ids=["service's loop", "own loop"])
async def test_calls_that_wait_beside_one_another_are_told_to_take_their_time(own_loop: bool) -> None:
    """However many end in each moment: 200 that sleep for 20 ms are no quick calls."""
    async with (
        running_replica(f"tests.contract.sleeping_handlers:{'OwnLoop' if own_loop else 'Sleeping'}") as replica,
        replica.router() as stream,
    ):
        for _ in range(3):
            await stream.send(stream.run([b"x"] * 200, method="nap"))
        await stream.wait_answers(600)
        (told,) = stream.service_times[-1].methods
        assert told.service_time.ToNanoseconds() > 10_000_000
