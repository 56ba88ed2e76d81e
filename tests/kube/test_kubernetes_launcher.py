"""The launcher of pods on a real API server: the contract of every launcher, and what breaks between the two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller_service.shell.launchers.kubernetes.api import PodApi
from controller_service.shell.launchers.kubernetes.launcher import KubernetesLauncher
from controller_service.shell.launchers.kubernetes.manifests import PodManifests, selector_of
from controller_service.shell.launchers.protocol import Exit, LaunchDeferred, LaunchFailed, LaunchOrder
from controller_service.shell.replica_logs import LogBook
from slotmesh.spec.model import PodSettings
from tests.contract.controller.test_launchers import (
    OBEDIENT,
    STUBBORN,
    Bench,
    catching_sigterm,
    test_a_replica_that_dies_is_reported_once_and_others_live,
    test_a_replica_that_does_not_end_is_killed_after_the_grace,
    test_a_replica_that_is_asked_ends_well,
    test_a_replica_that_is_killed_is_reaped_whatever_it_ignores,
    test_closing_ends_everything_stubborn_ones_too,
    test_no_exit_is_reported_before_start_returned,
)
from tests.kube.rig.cluster import Cluster, started_cluster
from tests.kube.rig.control_plane import EVICTED_SOON, ControlPlane
from tests.support.kubernetes_launcher import RecordedEvents, numbered
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import wait_until

__all__ = [
    "test_a_replica_that_dies_is_reported_once_and_others_live",
    "test_a_replica_that_does_not_end_is_killed_after_the_grace",
    "test_a_replica_that_is_asked_ends_well",
    "test_a_replica_that_is_killed_is_reaped_whatever_it_ignores",
    "test_closing_ends_everything_stubborn_ones_too",
    "test_no_exit_is_reported_before_start_returned",
]
pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.timeout(300)]

RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]
"""All that docs/operations.md asks for."""
PROGRAM = f"import sys\nexec({STUBBORN!r} if '--handler=stubborn:Handler' in sys.argv else {OBEDIENT!r})"
CONTAINER = {"name": "replica", "image": "app:1", "command": ["python", "-S", "-c", PROGRAM]}
ORDER = LaunchOrder(backend="v1", handler="obedient:Handler", template="t", fixed="f")
PATIENT_S = 120.0


class Pods:
    """A launcher in a cluster."""

    def __init__(self, cluster: Cluster, launcher: KubernetesLauncher, exits: list[Exit], book: LogBook) -> None:
        self.cluster = cluster
        self.book = book
        self.launcher = launcher
        self.exits = exits
        self.events = RecordedEvents()
        self.following = asyncio.create_task(launcher.follow(self.events))
        self.kills: list[asyncio.Task[None]] = []

    async def running(self) -> None:
        """Waits until the processes of all pods react to signals as their handlers say."""
        names = {it.replica_id for it in self.launcher.observe()}
        await self.until(lambda: names <= {it.replica_id for it in self.started()}, "pods")
        for name in names:
            for container in self.cluster.nodes[0].pod(name).containers:
                assert container.process is not None
                await catching_sigterm(container.process.pid)

    async def until(self, is_so: Callable[[], object], what: str) -> None:
        """Waits, for as long as the launcher follows pods."""
        waiting = asyncio.create_task(wait_until(is_so, what=what, timeout=PATIENT_S))
        await asyncio.wait((waiting, self.following), return_when=asyncio.FIRST_COMPLETED)
        if self.following.done():
            waiting.cancel()
            self.following.result()
        await waiting

    def started(self) -> list[Any]:
        return [it for it in self.launcher.observe() if not it.waits_for]

    def kill(self, name: str) -> None:
        async def kill() -> None:
            await self.until(lambda: any(it.replica_id == name for it in self.started()), "the pod")
            self.cluster.nodes[0].kill_pod(name)

        self.kills.append(asyncio.create_task(kill()))

    async def exit(self) -> Exit:
        await self.until(lambda: bool(self.exits), "an exit")
        return self.exits[-1]


@asynccontextmanager
async def launching(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    *,
    account: str = "launcher",
    rules: list[dict[str, Any]] = RULES,
    server: str = "",
    container: dict[str, Any] = CONTAINER,
    counts: bool = True,
    leaves: bool = False,
    owner: str | None = None,
) -> AsyncIterator[Pods]:
    """`counts`: replica ids end with numbers; otherwise they are the names of backends."""
    monkeypatch.setenv("KUBECONFIG", str(await cluster.account(account, rules, server=server)))
    manifests = PodManifests(
        mesh="default",
        template={"spec": {"containers": [container], "tolerations": EVICTED_SOON}},
        controllers=lambda: ["127.0.0.1:7070"],
        orphan_timeout=timedelta(minutes=5),
        fence_after=timedelta(minutes=5),
    )
    exits: list[Exit] = []
    mint_id = numbered() if counts else lambda backend: backend
    api = PodApi.connect(None, selector_of("default"))
    assert api.namespace == cluster.namespace
    book = LogBook(max_bytes=0)
    launcher = KubernetesLauncher(api, manifests, exits.append, mint_id, book, owner=owner, close_grace_s=1.0)
    pods = Pods(cluster, launcher, exits, book)
    try:
        await pods.until(lambda: not launcher.follower.problem, "the first list")
        yield pods
        async with asyncio.timeout(PATIENT_S):
            await (launcher.leave() if leaves else launcher.close())
    finally:
        for task in (pods.following, *pods.kills):
            task.cancel()
        await asyncio.gather(pods.following, *pods.kills, return_exceptions=True)


@pytest_asyncio.fixture
async def bench(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with launching(cluster, monkeypatch, counts=False) as pods:
        yield Bench(
            pods.launcher,
            pods.exits,
            lambda name, _: pods.kill(name),
            lambda _: pods.running(),
            lambda _: None,
        )


async def test_pods_are_taken_over_by_the_next_controller(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with launching(cluster, monkeypatch, leaves=True) as before:
        await before.launcher.start(ORDER, 2)
        await before.running()
    async with launching(cluster, monkeypatch, account="next") as after:
        found = after.launcher.observe()
        assert [(it.replica_id, it.order, it.was_found, it.waits_for) for it in found] == [
            ("v1-1", ORDER, True, ""),
            ("v1-2", ORDER, True, ""),
        ]
        await after.launcher.start(ORDER, 2)
        assert len(after.launcher.observe()) == 2


async def test_pods_run_on_while_the_api_server_is_away_and_what_it_missed_is_done_when_it_returns(
    cluster: Cluster, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launching(cluster, monkeypatch) as pods:
        await pods.launcher.start(ORDER, 2)
        await pods.running()
        control_plane.kill("kube-apiserver")
        try:
            await pods.until(lambda: bool(pods.launcher.follower.problem), "the loss")
            with pytest.raises(LaunchDeferred, match="the API server of Kubernetes does not answer"):
                await pods.launcher.start(ORDER, 3)
            cluster.nodes[0].kill_pod("v1-2")
            await asyncio.to_thread(control_plane.compact)
        finally:
            control_plane.restart()  # in this thread, with which it would end
        assert (await pods.exit()).how == "was killed by SIGKILL"
        assert pods.events.log[-1][0] != "lost"
        await pods.launcher.start(ORDER, 2)
        assert [it.replica_id for it in pods.launcher.observe()] == ["v1-1", "v1-3"]


async def test_a_watch_that_hangs_half_open_is_given_up_and_continues_where_it_was(
    cluster: Cluster, api_proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launching(cluster, monkeypatch, server=f"https://{api_proxy.address}") as pods:
        await pods.launcher.start(ORDER, 1)
        await pods.running()
        api_proxy.stall()
        cluster.nodes[0].kill_pod("v1-1")
        await pods.until(lambda: bool(pods.launcher.follower.problem), "the time limit")
        assert not pods.exits
        api_proxy.heal()
        assert (await pods.exit()).how == "was killed by SIGKILL"
        assert pods.launcher.follower.lists == 1


async def test_what_the_account_may_not_do_is_said_by_the_api_server(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [{**RULES[0], "verbs": ["get", "list", "watch", "delete"]}]
    async with launching(cluster, monkeypatch, rules=rules) as pods:
        with pytest.raises(LaunchFailed, match=r"the pod \(403 Forbidden\): .*cannot create resource"):
            await pods.launcher.start(ORDER, 1)
        assert not pods.launcher.observe()


async def test_a_pod_that_is_invalid_is_refused_with_its_field(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = {**CONTAINER, "ports": [{"containerPort": 70_000}]}
    async with launching(cluster, monkeypatch, container=container) as pods:
        with pytest.raises(LaunchFailed, match=r"\(422 Invalid\): .*containerPort"):
            await pods.launcher.start(ORDER, 1)


async def test_a_pod_that_no_node_has_room_for_says_so_and_ends_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launching(cluster, monkeypatch) as pods:
        await pods.launcher.start(replace(ORDER, pod=PodSettings(cpu="1k")), 1)

        def why() -> str:
            return pods.launcher.observe()[0].waits_for

        await pods.until(lambda: why().startswith("Unschedulable: "), "the reason")
        assert "Insufficient cpu" in why()
        pods.launcher.stop("v1-1", grace_s=30.0)
        assert (await pods.exit()).how == "its pod was deleted before a node was chosen"


async def test_a_forced_deletion_proves_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with launching(cluster, monkeypatch) as pods:
        await pods.launcher.start(ORDER, 1)
        await pods.running()
        cluster.nodes[0].disconnect()
        try:
            await cluster.kubectl("delete", "pod", "v1-1", "--force", "--grace-period=0")
            await pods.until(lambda: not pods.launcher.observe(), "the deletion")
        finally:
            cluster.nodes[0].reconnect()
        assert pods.events.log[-1] == ("lost", "v1-1", "its pod was deleted, and its end was not reported")
        assert pods.exits == []


async def test_pods_go_with_the_config_map_that_owns_them(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.api.create(cluster.path("configmaps"), {"metadata": {"name": "mesh"}})
    rules = [*RULES, {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mesh"], "verbs": ["get"]}]
    async with launching(cluster, monkeypatch, rules=rules, owner="mesh") as pods:
        await pods.launcher.start(ORDER, 2)
        await pods.running()
        await cluster.api.delete(cluster.path("configmaps", "mesh"))
        await pods.until(lambda: len(pods.exits) == 2, "their ends")
        with pytest.raises(LaunchFailed, match="ConfigMap mesh of --kubernetes-owner cannot be read"):
            await pods.launcher.start(ORDER, 1)


@pytest.mark.long
async def test_a_pod_that_was_bound_to_a_lost_node_is_replaced_while_the_node_is_still_listed(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is silent, the scheduler does not know yet, and the pod is evicted but cannot end.

    No pod is evicted if all nodes are silent: the other one gets the pod's successor.
    """
    async with (
        started_cluster(control_plane, tmp_path, nodes=2) as cluster,
        launching(cluster, monkeypatch) as pods,
    ):
        lost, other = cluster.nodes
        await cluster.kubectl("cordon", other.name)
        lost.disconnect()
        try:
            await pods.launcher.start(ORDER, 1)
            await cluster.wait_for_pods(lambda found: found and found[0]["spec"].get("nodeName"), "a node")
            await lost.lose()
            await pods.until(lambda: not pods.launcher.observe(), "the eviction")
            (left,) = await cluster.pods()
            assert (left["spec"]["nodeName"], left["status"]["phase"]) == (lost.name, "Pending")
            news, replica_id, why = pods.events.log[-1]
            assert (news, replica_id) == ("lost", "v1-1")
            assert "no start of it was reported" in why
            await cluster.kubectl("uncordon", other.name)
            await pods.launcher.start(ORDER, 1)
            await pods.until(pods.started, "its successor")
            assert [it.replica_id for it in pods.started()] == ["v1-2"]
        finally:
            lost.reconnect()
