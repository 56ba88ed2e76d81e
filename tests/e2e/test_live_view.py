"""`slotmesh top` and `slotmesh tap` beside a real mesh: the figures of Prometheus, each call once, the dead gone."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest

import slotmesh as sdk
from tests.support.mesh import MeshRun, started_mesh
from tests.support.metrics import scraped
from tests.support.shell import running, slotmesh

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio]

GOOD, BAD = 40, 7


async def figures(mesh: MeshRun) -> dict[str, Any]:
    said = await slotmesh("top", "--once", "--output", "json", "--address", mesh.controller_address)
    assert said.status == 0, said.err
    document: dict[str, Any] = json.loads(said.out)
    return document


async def figures_where(mesh: MeshRun, is_right: Any, what: str) -> dict[str, Any]:
    deadline = asyncio.get_running_loop().time() + 60.0
    while not is_right(found := await figures(mesh)):
        assert asyncio.get_running_loop().time() < deadline, f"{what}: {found}"
    return found


async def call_all(address: str) -> None:
    async with sdk.connect(address) as client:
        gallery = client.endpoint("Gallery")
        assert await gallery.double.map(range(GOOD)) == [2 * number for number in range(GOOD)]
        for number in range(BAD):
            with pytest.raises(sdk.HandlerError):
                await gallery.fail(str(number))


@pytest.mark.long
async def test_top_has_the_figures_of_prometheus() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", replicas=2, routers=2) as mesh:
        for address in mesh.router_addresses:
            await call_all(address)
        calls, failures = 2 * (GOOD + BAD), 2 * BAD
        shown = await figures_where(
            mesh,
            lambda it: (
                it["endpoints"][0]["calls_total"] == calls
                and sum(replica["calls_total"] or 0 for replica in it["replicas"]) == calls
            ),
            "all members have reported",
        )
        members = await mesh.members()
        pages = [await scraped(router.metrics_address) for router in members.routers]
        of_replicas = [await scraped(replica.metrics_address) for replica in members.replicas]
        (endpoint,), (backend,) = shown["endpoints"], shown["backends"]
        assert endpoint["calls_total"] == sum(
            page.total("slotmesh_router_calls_total", endpoint="Gallery") for page in pages
        )
        assert endpoint["failures_total"] == failures
        assert failures == sum(page.total("slotmesh_router_failures_total", endpoint="Gallery") for page in pages)
        sent = sum(page.total("slotmesh_router_queue_time_seconds_count", backend="Gallery") for page in pages)
        assert backend["sent_total"] == sent
        assert (backend["ended_total"], backend["failed_total"]) == (calls, failures)
        assert [router["calls_total"] for router in shown["routers"]] == [calls / 2, calls / 2]
        for replica, page in zip(shown["replicas"], of_replicas, strict=True):
            assert replica["calls_total"] == page.total("slotmesh_replica_calls_total")
        table = await slotmesh("top", "--address", mesh.controller_address)
        assert (table.status, "Gallery" in table.out) == (0, True)


@pytest.mark.long
async def test_a_replica_that_is_killed_is_ready_no_more() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", replicas=2) as mesh:
        killed = await mesh.kill_replica()
        shown = await figures_where(
            mesh,
            lambda it: killed not in {each["replica_id"] for each in it["replicas"] if each["state"] == "READY"},
            "the dead replica is not shown as ready",
        )
        assert shown["backends"][0]["live_replicas"] <= 2
        await figures_where(mesh, lambda it: it["backends"][0]["ready_replicas"] == 2, "another one in its place")
        assert sum(each["restart_count"] for each in (await figures(mesh))["replicas"]) == 1


async def test_tap_shows_each_call_once() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", routers=2) as mesh:
        arguments = ("tap", "Gallery", "--limit", str(2 * (GOOD + BAD)), "--address", mesh.controller_address)
        command = sys.executable, "-m", "slotmesh.cli", *arguments
        async with running(*command, stdout=PIPE, stderr=PIPE) as tap, asyncio.timeout(60.0):
            assert tap.stderr is not None
            heads = sorted([(await tap.stderr.readline()).decode() for _ in mesh.router_addresses])
            assert heads == sorted(f"slotmesh: tapping Gallery at {it}\n" for it in mesh.router_addresses)
            for address in mesh.router_addresses:
                await call_all(address)
            out, err = await tap.communicate()
        assert (tap.returncode, err.decode()) == (0, f"slotmesh: {2 * (GOOD + BAD)} calls shown, 0 dropped\n")
        lines = [json.loads(line) for line in out.splitlines()]
        for address in mesh.router_addresses:
            mine = [line for line in lines if line["router"] == address]
            assert sorted(line["method"] for line in mine) == ["double"] * GOOD + ["fail"] * BAD
            assert {line["reason"] for line in mine if line["method"] == "fail"} == {"HANDLER_ERROR"}
            assert {line["outcome"] for line in mine if line["method"] == "double"} == {"completed"}
        assert not any("payload" in line or "result" in line for line in lines)
        (version,) = {line["version"] for line in lines}
        assert version.startswith("file:"), "that of the code"


@pytest.mark.long
async def test_calls_shows_what_runs_where_and_what_is_behind_it() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", routers=2) as mesh:
        first, second = mesh.router_addresses
        async with sdk.connect(first) as one, sdk.connect(second) as other:
            lane = one.endpoint("Gallery").ordered("user-7")
            made = [lane.wait(3600.0), lane.wait(3600.0)]
            made.append(other.endpoint("Gallery").options(tenant="acme").wait(3600.0))
            asked = ("calls", "--controller", mesh.controller_address)
            deadline = asyncio.get_running_loop().time() + 60.0
            while True:
                said = await slotmesh(*asked, "-o", "json")
                assert (said.status, said.err) == (0, "")
                document = json.loads(said.out)
                if document["at_replicas"] == 3:
                    break
                assert asyncio.get_running_loop().time() < deadline, document
            calls = document["calls"]
            assert sorted((it["state"], it["router"], it["tenant"]) for it in calls) == sorted(
                [("running", first, None), ("in lane", first, None), ("running", second, "acme")]
            )
            assert {it["method"] for it in calls} == {"wait"}
            assert all(it["replica"].startswith("Gallery-") and it["age_s"] >= it["sent_s"] for it in calls)
            of_key = json.loads((await slotmesh(*asked, "--running", "--key", "user-7", "-o", "json")).out)
            assert [it["state"] for it in of_key["calls"]] == ["running", "in lane"]
            table = await slotmesh(*asked, "Gallery", "--limit", "2")
            assert table.status == 0
            assert "Gallery.wait" in table.out
            assert "0 waiting, 3 at replicas; 1 not shown" in table.out
            assert "user-7" not in table.out
            assert (await slotmesh(*asked, "--waiting")).out == "0 waiting\n", "those at replicas are not counted"
            refused = await slotmesh(*asked, "--keys")
            assert refused.status == 1
            assert "--tap-payloads" in refused.err
            for call in made:
                call.cancel()
            await asyncio.gather(*made, return_exceptions=True)


@pytest.mark.long
async def test_a_wrong_method_is_told_and_sigterm_leaves_the_summary() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery") as mesh:
        arguments = ("tap", "Gallery", "--method", "dubble", "--address", mesh.controller_address)
        command = sys.executable, "-m", "slotmesh.cli", *arguments
        async with running(*command, stdout=PIPE, stderr=PIPE) as tap, asyncio.timeout(60.0):
            assert tap.stderr is not None
            told = [(await tap.stderr.readline()).decode() for _ in range(2)]
            tap.terminate()
            _, err = await tap.communicate()
        assert told[1] == "slotmesh: Gallery has no method dubble now; did you mean double?\n"
        assert (tap.returncode, err.decode()) == (143, "slotmesh: 0 calls shown, 0 dropped\n")

        wrong = ("bench", "Gallery", "dubble", "--duration", "1s", "--address", mesh.router_addresses[0])
        said = await slotmesh(*wrong)
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith("NOT_FOUND/METHOD_NOT_FOUND: ")
