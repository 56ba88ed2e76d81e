"""Every panel of the dashboard has data in a real Prometheus that scrapes a mesh under load, and is true."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import slotmesh
from slotmesh.client.mesh import Mesh as Client
from tests.support.http_client import http, http_connection, request_bytes
from tests.support.mesh import ROOT, mesh_run
from tests.support.prometheus import Prometheus, needs_prometheus, running_prometheus
from tests.support.promql import choices, panel_queries

pytestmark = [needs_prometheus, pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.long]

DASHBOARD: Final = ROOT / "deploy" / "grafana" / "slotmesh.json"
DATA_S: Final = 90.0
"""A backstop: the figures of a few scrapes are enough."""
MESH: Final = """\
backends:
  v1: {handler: "tests.e2e.handlers:Gallery", num_replicas: 2, max_ongoing: 4, prefetch: 64}
  v2: {handler: "tests.e2e.handlers:Gallery", num_replicas: 1, max_ongoing: 1}
endpoints:
  gallery: {traffic: {v1: 1.0}, shadows: {v2: 0.5}}
  leased: {traffic: {v1: 1.0}}
"""


@dataclass
class Load:
    """What a client has done."""

    calls: int = 0
    """Of the endpoint `gallery`."""
    is_over: bool = False


@asynccontextmanager
async def http_load(address: str) -> AsyncIterator[None]:
    """Requests of each kind, until the block ends: answered, failed, with values, and left by their client."""

    async def go_on() -> None:
        while True:
            await http(address, "POST", "/leased/double", [1])
            await http(address, "POST", "/leased/fail", ["on purpose"])
            await http(address, "POST", "/leased/double", [3], {"accept": "application/x-ndjson"})
            async with http_connection(address) as connection:
                await connection.send(request_bytes("POST", "/leased/wait", b"[1]"))
                await asyncio.sleep(0.05)

    task = asyncio.ensure_future(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def load(client: Client) -> AsyncIterator[Load]:
    """Calls of each kind, until the block ends."""
    done, gallery, leased = Load(), client.endpoint("gallery"), client.endpoint("leased")

    async def go_on() -> None:
        while not done.is_over:
            done.calls += 8 + 16 + 32 + 1
            with suppress(slotmesh.SlotmeshError):
                await asyncio.gather(
                    gallery.double.map(range(8)),
                    gallery.squares.map(range(16)),
                    gallery.wait.map([0.05] * 32),
                    gallery.fail("on purpose"),
                    return_exceptions=True,
                )
            async with leased.reserve() as slot:
                await slot.double(1)

    task = asyncio.ensure_future(go_on())
    try:
        yield done
    finally:
        done.is_over = True
        await task


def concrete(query: str) -> str:
    """With what Grafana would put in place of its variables: all of everything."""
    for variable, value in (("$__rate_interval", "10s"), ("$endpoint", ".*"), ("$backend", ".*")):
        query = query.replace(variable, value)
    assert "$" not in query
    return query


async def lacking(prometheus: Prometheus, queries: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Those that have no data, or whose series have not the labels that the legend names."""
    found = {}
    for (title, legend), query in queries.items():
        labels = {it.partition("}}")[0] for it in legend.split("{{")[1:]}
        series = await prometheus.query(concrete(query)) if await prometheus.has_data(concrete(query)) else []
        if not any(labels <= it["metric"].keys() for it in series):
            found[title, legend] = query
    return found


@pytest.mark.asyncio
async def test_every_panel_has_data_and_counts_are_those_of_the_client(tmp_path: Path) -> None:
    file = tmp_path / "mesh.yaml"
    file.write_text(MESH, "utf-8")
    flags = ("--router-port=0", "--controller-port=0", "--http=0", "--log-level=info")
    async with running_prometheus() as prometheus, mesh_run(str(file), *flags) as mesh:
        await mesh.wait_ready()
        await prometheus.follow(mesh)
        async with (
            slotmesh.connect(mesh.router_address) as client,
            load(client) as done,
            http_load(mesh.http_address),
        ):
            left = dict(panel_queries(DASHBOARD))

            async def all_have_data() -> bool:
                nonlocal left
                left = await lacking(prometheus, left)
                return not left

            async def is_handed_back() -> bool:
                with suppress(ProcessLookupError):
                    await mesh.kill_replica(number=signal.SIGTERM)
                await mesh.wait_for_replicas(3, timeout=DATA_S)
                return await prometheus.has_data("slotmesh_router_refusals_total")

            # A replica that is to end hands back what waits there, if anything does at that moment.
            await prometheus.wait_for(is_handed_back, timeout=DATA_S, what="a replica has handed calls back")
            await prometheus.follow(mesh)
            try:
                await prometheus.wait_for(all_have_data, timeout=DATA_S, what="every panel has data")
            except AssertionError as error:
                error.add_note(f"without data: {left}")
                raise

        async def is_counted() -> bool:
            return await prometheus.total('slotmesh_router_calls_total{slotmesh_endpoint="gallery"}') == done.calls

        await prometheus.wait_for(is_counted, timeout=30, what=f"Prometheus has {done.calls} calls")
        for metric, label in choices(DASHBOARD).values():
            assert {it["metric"][label] for it in await prometheus.query(metric)} in (
                {"gallery", "leased"},
                {"v1", "v2"},
            )


@pytest.mark.asyncio
async def test_a_panel_without_data_is_found() -> None:
    async with running_prometheus() as prometheus:
        queries = {("all", "{{job}}"): "up", ("none", ""): "vector(1)", ("label", "{{job}}"): "vector(1)"}
        assert set(await lacking(prometheus, queries)) == {("all", "{{job}}"), ("label", "{{job}}")}
        with pytest.raises(AssertionError, match="parse error"):
            await prometheus.query("sum(")
