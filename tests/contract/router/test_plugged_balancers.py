"""Balancers of users' own in a router, over real gRPC: what they decide, and that none of them loses a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router_service.config import RouterSettings
from router_service.shell.balancer_loading import load_balancers
from slotmesh.balancers import CallEnd
from slotmesh.config import SettingsError
from slotmesh.runtime.exits import CannotStart
from slotmesh.v1 import router_service_pb2
from tests.support import balancers
from tests.support.fakes.controller import table
from tests.support.fakes.replica import hold
from tests.support.metrics import scraped
from tests.support.router_bench import Request, RouterBench, batch, calls, outcomes, router_bench
from tests.support.wait import wait_until
from tests.support.wire_options import wire_options


def path(name: str) -> str:
    return f"tests.support.balancers:{name}"


@asynccontextmanager
async def bench(*names: str, balancer: str = "", **settings: str) -> AsyncIterator[RouterBench]:
    """A router with these balancers; the backend names the first one unless told otherwise."""
    paths = ",".join(map(path, names))
    async with router_bench(metrics_port=0, balancers=paths, **settings) as mesh:
        await mesh.linked(*mesh.replicas, balancer=balancer or path(names[0]))
        yield mesh


async def faults(mesh: RouterBench, **labels: str) -> float:
    page = await scraped(mesh.controller.hellos[0].metrics_address)
    return page.total("slotmesh_router_balancer_faults_total", **labels)


@pytest.mark.asyncio
async def test_a_balancer_decides_by_metadata_that_the_router_shows_and_hears_of_the_end() -> None:
    async with bench("ByMetadata", balancer_metadata="to, other") as mesh:
        call = await mesh.open()
        batches = [
            batch(1, *[b"one"] * 50, metadata={"to": "r1", "secret": "s"}, tenant="t"),
            batch(51, *[b"two"] * 20, metadata={"to": "r0"}),
        ]
        await call.write(Request(calls=router_service_pb2.CallFrame(batches=batches)))
        assert len((await outcomes(call, 70))[0]) == 70
        assert mesh.replicas[1].payloads == [b"one"] * 50
        assert mesh.replicas[0].payloads == [b"two"] * 20
        first, second = balancers.ByMetadata.seen
        assert (first.endpoint, first.number, first.size, first.tenant) == ("echo", 50, 150, "t")
        assert (first.metadata, second.metadata) == ({"to": "r1"}, {"to": "r0"})
        assert sorted(balancers.ByMetadata.ended_calls) == [("r0", 20, CallEnd.WELL), ("r1", 50, CallEnd.WELL)]
        assert await faults(mesh) == 0
        page = await scraped(mesh.controller.hellos[0].metrics_address)
        assert page.total("slotmesh_router_balancer_pick_time_seconds_count") == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["First", "make_first"])
async def test_the_first_candidate_takes_calls_until_it_is_full(name: str) -> None:
    async with bench(name) as mesh:
        for replica in mesh.replicas:
            replica.answer = hold
            replica.capacity.max_ongoing = 4
        await mesh.linked()
        await mesh.linked(*mesh.replicas, balancer=path(name))
        call = await mesh.open()
        for number in range(1, 7):
            await call.write(calls(number, b"x"))
        await wait_until(lambda: sum(len(each.payloads) for each in mesh.replicas) == 6)
        assert [len(each.payloads) for each in mesh.replicas] == [4, 2]
        assert await faults(mesh) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("Raises", {"raised"}),
        ("RaisesAtTheSecond", {"raised"}),
        ("Hangs", {"late"}),
        ("Nonsense", {"none", "impossible", "raised"}),
        ("BadHooks", {"hook"}),
        ("CannotBeMade", {"raised", "set_aside"}),
    ],
)
async def test_whatever_it_does_no_call_is_lost_or_runs_twice(
    name: str, causes: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with bench(name) as mesh:
            call = await mesh.open()
            wanted = [b"%d" % number for number in range(1, 301)]
            for at in range(0, 300, 10):
                await call.write(calls(at + 1, *wanted[at : at + 10]))
            single = await asyncio.gather(
                *(
                    mesh.stub.Call(
                        router_service_pb2.CallRequest(
                            endpoint="echo", payload=b"single %d" % number, options=wire_options()
                        )
                    )
                    for number in range(20)
                )
            )
            done, failed = await outcomes(call, 300)
            assert not failed
            assert done == {number: b"%d" % number for number in range(1, 301)}
            assert [each.payload for each in single] == [b"single %d" % number for number in range(20)]
            ran = [payload for replica in mesh.replicas for payload in replica.payloads]
            assert sorted(ran) == sorted([*wanted, *(b"single %d" % number for number in range(20))])
            for cause in causes:
                assert await faults(mesh, pick_fault=cause) >= 1
    said = [each.getMessage() for each in caplog.records if "a balancer failed or" in each.getMessage()]
    assert 1 <= len(said) <= len(causes) + 1, "once for each cause"
    assert path(name) in said[0]
    assert not any("secret" in each for each in said)


@pytest.mark.asyncio
async def test_what_a_configuration_names_is_not_imported() -> None:
    async with bench("First", balancer=path("Raises")) as mesh:
        call = await mesh.open()
        await call.write(calls(1, b"x", b"y"))
        assert (await outcomes(call, 2))[0] == {1: b"x", 2: b"y"}
        page = await scraped(mesh.controller.hellos[0].metrics_address)
        assert page.total("slotmesh_router_balancers_unknown") == 1
        assert page.total("slotmesh_router_balancer_faults_total") == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no_such_module:X", r"--balancers no_such_module:X: cannot be loaded \(ModuleNotFoundError"),
        (path("Missing"), "cannot be loaded .AttributeError"),
        (path("NOT_ONE"), "a class with a method pick"),
        ("tests.support.wait:WaitTimeout", "cannot be loaded"),
    ],
)
def test_a_router_does_not_start_without_what_it_was_given(given: str, message: str) -> None:
    with pytest.raises(CannotStart, match=message):
        load_balancers([given])


def test_settings_are_checked() -> None:
    for flag in ("--balancers=my balancers", "--balancer-metadata=Upper", "--balancer-budget=1", "--zone=a b"):
        with pytest.raises(SettingsError, match=flag.partition("=")[0]):
            RouterSettings.parse([flag], {}, prog="router")
    settings = RouterSettings.parse([], {"SLOTMESH_ZONE": "rack-7", "SLOTMESH_BALANCERS": "a:B, c:D"}, prog="router")
    assert (settings.zone, settings.balancer_budget.total_seconds()) == ("rack-7", 0.001)


@pytest.mark.asyncio
async def test_near_replicas_are_first_until_they_are_full() -> None:
    async with router_bench(metrics_port=0, zone="near") as mesh:
        near, far = mesh.replicas
        for replica in mesh.replicas:
            replica.answer = hold
        wire = table(10, {"r0": near.address, "r1": far.address}, max_ongoing=3)
        for route, zone in zip(wire.backends[0].replicas, ("near", "far"), strict=True):
            route.zone = zone
        for replica in mesh.replicas:
            replica.capacity.max_ongoing = 3
        await mesh.linked()
        wire.revision = mesh.revision + 1
        mesh.controller.push(wire)
        await wait_until(lambda: mesh.controller.reports[-1].revision == wire.revision)
        await wait_until(lambda: len(mesh.controller.reports[-1].linked) == 2)
        call = await mesh.open()
        for number in range(1, 6):
            await call.write(calls(number, b"x"))
        await wait_until(lambda: len(near.payloads) + len(far.payloads) == 5)
        assert (len(near.payloads), len(far.payloads)) == (3, 2)
        page = await scraped(mesh.controller.hellos[0].metrics_address)
        assert page.total("slotmesh_router_zone_calls_total", distance="near") == 3
        assert page.total("slotmesh_router_zone_calls_total", distance="far") == 2
