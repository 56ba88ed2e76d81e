"""`slotmesh logs` of pods: a real API server, which gets them from the log servers of the rig's nodes."""

from __future__ import annotations

import asyncio

import pytest

from controller_service.shell.replica_logs import LogPage
from slotmesh.errors import PermissionDenied
from tests.kube.rig.cluster import Cluster
from tests.kube.test_kubernetes_launcher import ORDER, RULES, Pods, launching
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import within

pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.timeout(300)]


def write(pods: Pods, name: str, *lines: str) -> None:
    """As the pod's container does."""
    with pods.cluster.nodes[0].pod(name).place.log.open("a") as log:
        log.writelines(f"{line}\n" for line in lines)


async def read(pods: Pods, name: str, count: int = 100) -> list[LogPage]:
    return [page async for page in pods.book.read(name, count=count, follow=False)]


async def test_the_newest_lines_are_read_and_those_of_a_crashed_pod_are_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launching(cluster, monkeypatch) as pods:
        await pods.launcher.start(ORDER, 2)
        await pods.running()
        for name in ("v1-1", "v1-2"):
            write(pods, name, "a", "b", f"c of {name}")
        assert sorted((it.replica_id, it.lines) for it in await read(pods, "v1", 2)) == [
            ("v1-1", ["b", "c of v1-1"]),
            ("v1-2", ["b", "c of v1-2"]),
        ]
        cluster.nodes[0].kill_pod("v1-1")
        await pods.exit()
        await pods.until(lambda: list(pods.launcher.logs.replicas()) == ["v1-2"], "the last lines")
        (page,) = await read(pods, "v1-1", 2)
        assert page.lines == ["b", "c of v1-1"]


async def test_a_reader_goes_on_behind_the_last_line_when_connections_break(
    cluster: Cluster, api_proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the controller and the API server, and between the API server and the node."""
    async with launching(cluster, monkeypatch, server=f"https://{api_proxy.address}") as pods:
        await pods.launcher.start(ORDER, 1)
        await pods.running()
        reader = pods.book.read("v1-1", count=2, follow=True)

        async def lines(count: int) -> list[str]:
            found: list[str] = []
            while len(found) < count:
                found += (await within(anext(reader), what=f"lines after {found}", timeout=60.0)).lines
            return found

        write(pods, "v1-1", "0", "1", "2")
        assert await lines(2) == ["1", "2"]
        api_proxy.cut()
        api_proxy.heal()
        write(pods, "v1-1", "3")
        assert await lines(1) == ["3"]
        cluster.nodes[0].logs.cut()
        write(pods, "v1-1", "4")
        assert await lines(1) == ["4"]
        write(pods, "v1-1", "last")
        cluster.nodes[0].kill_pod("v1-1")
        rest = [line async for page in reader for line in page.lines]
        assert rest == ["last"]


async def test_what_a_pod_waits_for_is_in_place_of_its_lines(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    container = {"name": "replica", "image": "app:1", "env": [{"name": "X", "valueFrom": {"secretKeyRef": MISSING}}]}
    async with launching(cluster, monkeypatch, container=container) as pods:
        await pods.launcher.start(ORDER, 1)
        await pods.until(lambda: "CreateContainerConfigError" in pods.launcher.observe()[0].waits_for, "the reason")
        (page,) = await read(pods, "v1-1")
        assert 'container "replica" in pod "v1-1" is waiting to start: CreateContainerConfigError' in page.lines[0]


MISSING = {"name": "missing", "key": "x"}


async def test_the_right_that_is_missing_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with launching(cluster, monkeypatch, rules=RULES[:1]) as pods:
        await pods.launcher.start(ORDER, 1)
        await pods.running()
        with pytest.raises(PermissionDenied, match=r'\(403: .*cannot get resource "pods/log".*the verb `get`'):
            await asyncio.wait_for(read(pods, "v1-1"), 60.0)
