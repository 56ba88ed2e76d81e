"""Traffic policies over real gRPC: shadows, shard keys, and policies that change under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.v1 import router_service_pb2
from tests.support.fakes.replica import Answer, FakeReplica, echo, fail, fake_replica, hold
from tests.support.router_bench import Call, Request, RouterBench, batch, calls, outcomes, router_bench
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


async def shadowed(mesh: RouterBench, share: float) -> tuple[FakeReplica, FakeReplica]:
    """The replica that answers, and the one that gets copies."""
    primary, dark = mesh.replicas
    await mesh.linked(primary, others={"dark": [dark]}, shadows={"dark": share})
    return primary, dark


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["", "k"])
async def test_a_shadow_gets_its_share_and_the_caller_its_replies(mesh: RouterBench, key: str) -> None:
    primary, dark = await shadowed(mesh, 0.2)
    call = await mesh.open()
    payloads = [b"%d" % number for number in range(1, 2001)]
    for first in range(0, 2000, 10):
        await call.write(calls(first + 1, *payloads[first : first + 10], ordering_key=key))
    done, failed = await outcomes(call, 2000)
    assert done == {int(payload): payload for payload in payloads}
    assert not failed
    assert primary.payloads == payloads
    assert 400 - 72 < len(dark.payloads) < 400 + 72  # four standard deviations
    assert len(set(dark.payloads)) == len(dark.payloads)
    assert {run.options.ordering_key for run in dark.runs} == {""}


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [hold, fail])
async def test_a_shadow_that_hangs_or_fails_is_not_felt(mesh: RouterBench, answer: Answer) -> None:
    primary, dark = await shadowed(mesh, 1.0)
    dark.answer = answer
    call = await mesh.open()
    for number in range(1, 201):  # far more than fill the shadow's window, were it one
        await call.write(calls(number * 10, *[b"x"] * 10))
    done, failed = await outcomes(call, 2000)
    assert len(done) == 2000
    assert not failed
    assert dark.payloads
    if answer is hold:
        assert len(dark.payloads) == 512, "free slots only"
    assert len(primary.payloads) == 2000


@pytest.mark.asyncio
async def test_a_shadow_that_is_lost_is_not_felt(mesh: RouterBench) -> None:
    _, dark = await shadowed(mesh, 1.0)
    dark.answer = hold
    call = await mesh.open()
    await call.write(calls(1, b"1", b"2"))
    await outcomes(call, 2)
    await wait_until(lambda: dark.runs)
    dark.break_link()
    for number in range(3, 100):
        await call.write(calls(number, b"x"))
    done, failed = await outcomes(call, 97)
    assert set(done) == set(range(3, 100))
    assert not failed


KEYS = [f"key-{number}" for number in range(60)]


async def homes(mesh: RouterBench, call: Call) -> dict[str, int]:
    """The replica that each shard key's calls go to, over this stream."""
    before = [len(replica.payloads) for replica in mesh.replicas]
    batches = [batch(number * 3 + 1, *[key.encode()] * 3, shard_key=key) for number, key in enumerate(KEYS)]
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=batches)))
    done, _ = await outcomes(call, 3 * len(KEYS))
    assert len(done) == 3 * len(KEYS)
    where: dict[str, int] = {}
    for index, replica in enumerate(mesh.replicas):
        for payload in replica.payloads[before[index] :]:
            assert where.setdefault(payload.decode(), index) == index, "calls of one key at two backends"
    assert where.keys() == set(KEYS)
    return where


@pytest.mark.asyncio
async def test_shard_keys_land_alike_through_two_routers_and_after_a_restart(mesh: RouterBench) -> None:
    blue, green = mesh.replicas
    await mesh.linked(blue, others={"green": [green]}, weights={"b": 0.5, "green": 0.5})
    through_one = await homes(mesh, await mesh.open())
    assert set(through_one.values()) == {0, 1}
    for _ in range(2):
        async with mesh.another_router() as stub:
            assert await homes(mesh, await mesh.open(stub=stub)) == through_one
    await mesh.linked(blue, others={"green": [green]}, weights={"b": 0.9, "green": 0.1})
    after = await homes(mesh, await mesh.open())
    assert all(through_one[key] == 1 for key in KEYS if after[key] == 1), "a key moved for nothing"
    assert list(after.values()).count(0) > list(through_one.values()).count(0)


@pytest.mark.asyncio
async def test_replicas_do_not_see_what_only_routing_reads(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(calls(1, b"1", shard_key="s", method="m"))
    await outcomes(call, 1)
    (run,) = [run for replica in mesh.replicas for run in replica.runs]
    assert (run.options.shard_key, run.options.method) == ("", "m")


@pytest.mark.asyncio
async def test_after_a_change_of_the_policy_nothing_goes_to_a_backend_without_weight(mesh: RouterBench) -> None:
    blue, green = mesh.replicas
    call = await mesh.open()
    for step in range(10):
        weights = {"b": 1.0, "green": 0.0} if step % 2 else {"b": 0.0, "green": 1.0}
        await mesh.linked(blue, others={"green": [green]}, weights=weights)
        before = [len(replica.payloads) for replica in mesh.replicas]
        await call.write(calls(step * 100 + 1, *[b"x"] * 100))
        assert len((await outcomes(call, 100))[0]) == 100
        got = [len(replica.payloads) - already for replica, already in zip(mesh.replicas, before, strict=True)]
        assert got == ([100, 0] if step % 2 else [0, 100])


@pytest.mark.asyncio
async def test_policies_that_change_under_load_lose_no_call_and_keep_every_key_in_order(mesh: RouterBench) -> None:
    blue, green = mesh.replicas
    await mesh.linked(blue, others={"green": [green]})
    call = await mesh.open()
    sent = 0

    async def load() -> None:
        nonlocal sent
        while changing.is_set():
            batches = [batch(sent + 1, b"%d" % (sent + 1)), batch(sent + 2, b"%d" % (sent + 2), ordering_key="k")]
            batches.append(batch(sent + 3, b"%d" % (sent + 3), shard_key=f"s{sent}"))
            sent += 3
            await call.write(Request(calls=router_service_pb2.CallFrame(batches=batches)))
            if sent % 300 == 0:
                done, failed = await outcomes(call, 300)
                assert (len(done), failed) == (300, {})

    changing = asyncio.Event()
    changing.set()
    loading = asyncio.create_task(load())
    for step in range(50):
        share = (step % 5) / 4
        weights, shadows = {"b": share, "green": 1.0 - share}, {"b": (step % 3) / 2}
        await mesh.linked(blue, others={"green": [green]}, weights=weights, shadows=shadows)
    changing.clear()
    await loading
    if sent % 300:
        done, failed = await outcomes(call, sent % 300)
        assert (len(done), failed) == (sent % 300, {})
    keyed = [payload for run in blue.runs if run.options.ordering_key for payload in run.payloads]
    assert keyed == [b"%d" % number for number in range(2, sent + 1, 3)]
    assert not any(run.options.ordering_key for run in green.runs)


@pytest.mark.asyncio
async def test_weights_divide_calls_over_backends(mesh: RouterBench) -> None:
    blue, green = mesh.replicas
    await mesh.linked(blue, others={"green": [green]}, weights={"b": 0.9, "green": 0.1})
    call = await mesh.open()
    for first in range(1, 5001, 50):
        await call.write(calls(first, *[b"x"] * 50))
    assert len((await outcomes(call, 5000))[0]) == 5000
    assert 500 - 85 < len(green.payloads) < 500 + 85  # four standard deviations


@pytest.mark.asyncio
async def test_a_third_backend_joins_a_policy(mesh: RouterBench) -> None:
    async with fake_replica(echo) as third:
        mesh.replicas.append(third)
        blue, green = mesh.replicas[:2]
        weights = {"b": 0.4, "green": 0.3, "red": 0.3}
        await mesh.linked(blue, others={"green": [green], "red": [third]}, weights=weights)
        call = await mesh.open()
        await call.write(calls(1, *[b"x"] * 1000))
        assert len((await outcomes(call, 1000))[0]) == 1000
        assert all(200 < len(replica.payloads) < 500 for replica in mesh.replicas)
