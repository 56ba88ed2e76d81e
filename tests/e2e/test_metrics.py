"""What Prometheus gets from each process: what docs/metrics.md lists, in a form that its own checker accepts."""

from __future__ import annotations

import asyncio
import re
import shutil
from urllib.request import urlopen

import pytest

import slotmesh
from slotmesh.telemetry import names
from slotmesh.telemetry.names import Metric, MetricKind, prometheus_name
from tests.support.mesh import MeshRun, started_mesh
from tests.support.metrics import scraped
from tests.support.shell import Said, program

pytestmark = [pytest.mark.timeout(120)]

SERVING = re.compile(r"url=http://(\S+)/metrics")
SERVICES = ("controller", "router", "replica")
ONCE_THERE_IS_ONE = {
    names.ROUTER_REFUSALS,
    names.ROUTER_BALANCER_FAULTS,
    names.ROUTER_BALANCER_TIME,
    names.ROUTER_ZONE_CALLS,
    names.ROUTER_SHADOWS,
    names.ROUTER_REPLICA_FRAMES,
    names.REPLICA_FAILURES,
    names.REPLICA_BATCH_SIZE,
    names.REPLICA_FENCE,
    names.ROUTER_TENANT_CALLS,
    names.ROUTER_TENANT_FAILURES,
    names.ROUTER_TENANT_REFUSALS,
    names.ROUTER_TENANT_UNANSWERED,
    names.CONTROLLER_POD_WATCH_AGE,
    names.CONTROLLER_DEVICES,
}
"""Labels of these are known with the first value, or not of this mesh."""
MAKES_NO_SPANS = {"controller": {names.PROCESS_SPANS_DROPPED}}


async def addresses(mesh: MeshRun) -> dict[str, str]:
    """Where the metrics of one process of each service are."""
    members = await mesh.members()
    found = SERVING.search(mesh.log_text())
    assert found is not None, "the controller, which starts first, says where its metrics are"
    return dict(
        zip(SERVICES, (found[1], members.routers[0].metrics_address, members.replicas[0].metrics_address), strict=True)
    )


def page(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")


def of_service(service: str) -> list[Metric]:
    return [it for it in names.metrics() if it.name.split(".")[1] in {service, "process", "server"}]


@pytest.mark.asyncio
async def test_all_that_is_documented_is_there_from_the_start_and_nothing_else() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", flags=["--log-level=info"]) as mesh:
        for service, address in (await addresses(mesh)).items():
            text = await asyncio.to_thread(page, address)
            types = dict(re.findall(r"^# TYPE ((?:slotmesh|rpc)_\w+) (\w+)$", text, re.MULTILINE))
            known = {prometheus_name(it): it.kind.value for it in of_service(service)}
            assert types.items() <= known.items(), f"{service}: not documented, or of another kind"
            missing = {it for it in of_service(service) if prometheus_name(it) not in types}
            missing -= MAKES_NO_SPANS.get(service, set())
            assert missing <= ONCE_THERE_IS_ONE, f"{service}: not there from the start"
            assert f'target_info{{service_name="slotmesh-{service}"}} 1.0' in text
            assert "process_resident_memory_bytes" in text


@pytest.mark.long
@pytest.mark.asyncio
async def test_counters_of_failures_begin_at_zero() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", flags=["--log-level=info"]) as mesh:
        router = (await addresses(mesh))["router"]
        before = (await scraped(router)).total("slotmesh_router_failures_total", reason="HANDLER_ERROR")
        text = await asyncio.to_thread(page, router)
        assert 'slotmesh_reason="HANDLER_ERROR"} 0.0' in text
        async with slotmesh.connect(mesh.router_address) as client:
            with pytest.raises(slotmesh.SlotmeshError):
                await client.endpoint("Gallery").fail("on purpose")
        after = (await scraped(router)).total("slotmesh_router_failures_total", reason="HANDLER_ERROR")
        assert (before, after) == (0.0, 1.0)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool (Debian: prometheus)")
@pytest.mark.asyncio
async def test_the_checker_of_prometheus_finds_nothing() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", flags=["--log-level=info"]) as mesh:
        async with slotmesh.connect(mesh.router_address) as client:
            assert await client.endpoint("Gallery").squares.map([1, 2, 3]) == [1, 4, 9]
        for service, address in (await addresses(mesh)).items():
            text = await asyncio.to_thread(page, address)
            assert await program("promtool", "check", "metrics", stdin=text) == Said(0, "", ""), service


def test_kinds_say_what_their_names_end_in() -> None:
    for metric in names.metrics():
        assert prometheus_name(metric).endswith("_total") == (metric.kind is MetricKind.COUNTER)
