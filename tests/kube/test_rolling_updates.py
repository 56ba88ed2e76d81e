"""Rolling updates of every part of a mesh, under load: no call fails, and order is kept."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.history.summary import summary
from tests.kube.http_calls import http_calls
from tests.kube.mesh import KubeMesh, assert_survived, history_of, loaded
from tests.kube.rig.cluster import started_cluster
from tests.kube.rig.control_plane import ControlPlane
from tests.kube.rig.local_pod import LocalPod
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.timeout(600)]


def all_gone(pods: list[LocalPod]) -> bool:
    return all(it.is_gone for it in pods)


@pytest.mark.long
async def test_no_call_fails_while_every_part_is_updated(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Controllers, routers, ingresses and replicas, one part after the other."""
    async with started_cluster(control_plane, tmp_path / "cluster", nodes=2) as cluster:
        if cluster.dns is None:
            pytest.skip("NO ROOT: clients find new routers by DNS, which needs port 53; no rolling update is tried")
        mesh = KubeMesh(cluster, tmp_path, "external", controllers=2)
        await mesh.start()
        async with loaded(mesh) as run, http_calls(cluster, "ingress", run.log):
            for part in ("controller", "router", "ingress", "replica"):
                began = time.monotonic()
                old = mesh.pods(part)
                await mesh.restart(part)
                await wait_until(partial(all_gone, old), timeout=60, what=f"the end of the old {part}")
                await mesh.settled()
                run.note(f"rolling update of {part}", began, "other pods")
                await run.workload.wait_for_progress(timeout=60)
    history = history_of(mesh)
    sys.stdout.write(f"{summary(history)}\n")
    assert_survived(history)
