"""Faults of the cluster under load: its API server is away, and a node vanishes."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from tests.history.summary import summary
from tests.kube.mesh import (
    KEYS_MOVE_S,
    LAUNCHERS,
    KubeMesh,
    Launcher,
    assert_survived,
    history_of,
    loaded,
    lost_with,
)
from tests.kube.rig.cluster import started_cluster
from tests.kube.rig.control_plane import ControlPlane

pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.timeout(500)]

AWAY_S = 30.0
DEFERRED_S = 10.0
"""After this long what was asked for meanwhile is done, once the API server answers again."""


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
async def test_no_call_fails_while_the_api_server_is_away_and_what_waited_is_done_after(
    control_plane: ControlPlane, tmp_path: Path, launcher: Launcher
) -> None:
    """30 s. With the launcher, two more replicas are asked for meanwhile."""
    wanted = 5 if launcher == "kubernetes" else 3
    async with started_cluster(control_plane, tmp_path / "cluster") as cluster:
        mesh = KubeMesh(cluster, tmp_path, launcher)
        await mesh.start()
        async with loaded(mesh) as run:
            began = time.monotonic()
            control_plane.kill()
            if launcher == "kubernetes":
                await mesh.scale(wanted)
            while time.monotonic() < began + AWAY_S:
                await run.workload.wait_for_progress()
            assert len(await mesh.replica_ids()) == 3
            control_plane.restart()
            await asyncio.to_thread(control_plane.wait_ready)
            control_plane.recover()
            returned = time.monotonic()
            await mesh.settled(replicas=wanted)
            took = time.monotonic() - returned
            run.note("the API server is killed", began, "it did not answer")
            await run.workload.wait_for_progress()
    history = history_of(mesh)
    sys.stdout.write(f"{launcher}: deferred work was done after {took:.1f} s\n{summary(history)}\n")
    assert_survived(history)
    assert took < DEFERRED_S * history.patience


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
async def test_keys_go_on_when_a_node_vanishes(control_plane: ControlPlane, tmp_path: Path, launcher: Launcher) -> None:
    """Nothing proves the end of its pods: their keys wait until replicas must have fenced themselves."""
    async with started_cluster(control_plane, tmp_path / "cluster", nodes=3) as cluster:
        mesh = KubeMesh(cluster, tmp_path, launcher, home="node-0")
        await mesh.start()
        async with loaded(mesh) as run:
            victim = await mesh.pod_of(min(await mesh.replica_ids()))
            node = cluster.node_of(victim.name)
            lost = frozenset(
                {it for it in await mesh.replica_ids() if cluster.node_of((await mesh.pod_of(it)).name) is node}
            )
            run.died([pid for pod in node.pods.values() for pid in pod.pids()])
            began = time.monotonic()
            node.vanish()
            await run.workload.wait_for_progress(timeout=KEYS_MOVE_S * 4)
            took = await run.keys_go_on(began)
            node.lose_power()
            await mesh.settled(without=lost, timeout=180)  # also where a successor was bound to it before it was lost
            run.note(f"SIGSTOP of {node.name}", began, "it was silent")
    history = history_of(mesh)
    sys.stdout.write(f"{launcher}: keys of {len(lost)} replicas went on after {took:.1f} s\n{summary(history)}\n")
    assert_survived(history, may_fail=lost_with(history, seconds=60))
