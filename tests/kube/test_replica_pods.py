"""Pods of replicas that end, in each way that Kubernetes has, under load: their keys go on elsewhere within 15 s."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.history.summary import summary
from tests.kube.mesh import (
    KEYS_MOVE_S,
    LAUNCHERS,
    KubeMesh,
    Launcher,
    Run,
    assert_survived,
    history_of,
    loaded,
    lost_with,
)
from tests.kube.rig.cluster import started_cluster
from tests.kube.rig.control_plane import ControlPlane

pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.timeout(400)]


async def kill(run: Run, replica_id: str) -> None:
    pod = await run.mesh.pod_of(replica_id)
    run.died(pod.pids())
    run.mesh.cluster.node_of(pod.name).kill_pod(pod.name)


async def delete(run: Run, replica_id: str) -> None:
    pod = await run.mesh.pod_of(replica_id)
    await run.mesh.cluster.kubectl("delete", "pod", pod.name, "--wait=false")


async def force_delete(run: Run, replica_id: str) -> None:
    pod = await run.mesh.pod_of(replica_id)
    run.died(pod.pids())
    await run.mesh.cluster.kubectl("delete", "pod", pod.name, "--force", "--grace-period=0", "--wait=false")


async def drain(run: Run, replica_id: str) -> None:
    """Of the node, for its other replicas too. Pods that belong to no Deployment or the like need `--force`."""
    pod = await run.mesh.pod_of(replica_id)
    node = run.mesh.cluster.node_of(pod.name).name
    flags = ("--pod-selector=app=replica", "--force", "--timeout=120s")
    await run.mesh.cluster.kubectl("drain", node, *flags, timeout=150)
    await run.mesh.cluster.kubectl("uncordon", node)


Act = Callable[[Run, str], Awaitable[None]]


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
async def test_keys_go_on_when_pods_are_killed_deleted_and_evicted(
    control_plane: ControlPlane, tmp_path: Path, launcher: Launcher
) -> None:
    """SIGKILL, deletion, forced deletion, drain of a node: one after the other, each under load."""
    took: dict[str, float] = {}
    replaced: dict[str, float] = {}
    async with started_cluster(control_plane, tmp_path / "cluster", nodes=2) as cluster:
        mesh = KubeMesh(cluster, tmp_path, launcher)
        await mesh.start()
        async with loaded(mesh) as run:
            acts: list[Act] = [kill, delete, force_delete, drain]
            for act in acts:
                victim = min(await mesh.replica_ids())
                began = time.monotonic()
                await act(run, victim)
                took[act.__name__] = await run.keys_go_on(began)
                await mesh.settled(without=frozenset({victim}) if launcher == "kubernetes" else frozenset())
                replaced[act.__name__] = time.monotonic() - began
                run.note(f"{act.__name__} of {victim}", began, "the controller has its successor")
    history = history_of(mesh)
    sys.stdout.write(
        f"{launcher}: keys went on after {took}, pods were replaced after {replaced}\n{summary(history)}\n"
    )
    assert_survived(history, may_fail=lost_with(history))
    assert max(took.values()) < KEYS_MOVE_S * history.patience
