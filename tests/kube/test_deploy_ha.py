"""The components `tls` and `ha` of deploy/kubernetes: two controllers with their state in etcd, all by TLS."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import slotmesh
from tests.kube.journal import ENDPOINT
from tests.kube.manifests import pod, service
from tests.kube.rig.api import Document
from tests.kube.rig.cluster import Cluster, started_cluster
from tests.kube.rig.control_plane import ControlPlane
from tests.kube.rig.local_pod import Image
from tests.kube.test_deploy import RESTRICTED, own_overlay
from tests.support.certificates import Authority
from tests.support.mesh import ROOT
from tools.kubetest.build import folder

pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.long, pytest.mark.timeout(300)]

IDENTITIES: Final = {
    "controller": ("controller", ""),
    "router": ("router", ""),
    "ingress": ("ingress", ""),
    "https": ("ingress", ""),
    "digits-v1": ("replica", "digits-v1"),
    "operator": ("operator", "ops"),
}
"""By the name of the Secret, without `tls-`."""
ETCD: Final = Image(entrypoint=(str(folder() / "etcd"),))


async def create_secrets(cluster: Cluster, authority: Authority) -> None:
    """As docs/kubernetes.md makes them."""
    for name, (kind, backend) in IDENTITIES.items():
        files = authority.issue(kind, backend)
        sources = (f"ca.crt={files.ca}", f"tls.crt={files.cert}", f"tls.key={files.key}")
        await cluster.kubectl("create", "secret", "generic", f"tls-{name}", *(f"--from-file={it}" for it in sources))
    tokens = json.dumps({"version": 1, "tokens": []})
    await cluster.kubectl("create", "secret", "generic", "tokens", f"--from-literal=tokens.json={tokens}")


async def start_etcd(cluster: Cluster) -> None:
    client, peer = "http://$(POD_IP):2379", "http://$(POD_IP):2380"
    program = {
        "name": "main",
        "image": "etcd",
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "args": [
            "--data-dir=/var/lib/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ],
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"}],
        "securityContext": RESTRICTED,
    }
    volumes = [{"name": "data", "emptyDir": {}}]
    await cluster.api.create(cluster.path("pods"), pod("etcd", program, volumes=volumes))
    await cluster.api.create(cluster.path("services"), service("etcd", 2379))


class Operator:
    """The command line, with an operator's certificate."""

    def __init__(self, cluster: Cluster, certs: Path) -> None:
        self._cluster = cluster
        self._certs = certs

    async def run(self, *arguments: str) -> str:
        """Output of a command. Raises AssertionError if it fails."""
        pods = await self._cluster.pods("app.kubernetes.io/component=controller")
        addresses = ",".join(f"{it['status']['podIP']}:7070" for it in pods if it["status"].get("podIP"))
        env = {**os.environ, "SLOTMESH_TLS_DIR": str(self._certs), "SLOTMESH_CONTROLLER": addresses}
        command = [sys.executable, "-m", "slotmesh.cli", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def leader(self) -> str:
        """The name of the pod that leads; empty if there is none."""
        try:
            status: Document = json.loads(await self.run("status", "--output=json"))
        except AssertionError:
            return ""
        host = str(status["controller"]).rpartition(":")[0]
        pods = await self._cluster.pods("app.kubernetes.io/component=controller")
        return next((it["metadata"]["name"] for it in pods if it["status"].get("podIP") == host), "")


async def test_two_controllers_by_tls_are_updated_and_one_takes_over(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "certs")
    async with started_cluster(control_plane, tmp_path, nodes=2, images={"etcd": ETCD}) as cluster:
        await create_secrets(cluster, authority)
        await start_etcd(cluster)
        overlay = own_overlay(tmp_path, cluster.namespace, "tls", "ha")
        await cluster.kubectl("apply", "-k", str(overlay), "--validate=strict")
        await cluster.wait_for_ready(11, selector="app.kubernetes.io/name=slotmesh")
        operator = Operator(cluster, authority.directory)
        await operator.run("check", "--wait=20s")

        first = await operator.leader()
        assert first
        await cluster.kubectl("delete", "pod", first, "--wait=false")

        async def leads_another() -> bool:
            return await operator.leader() not in ("", first)

        routers = await cluster.pods("app.kubernetes.io/component=router")
        tls = slotmesh.Tls.from_dir(authority.directory, "operator-ops")
        async with slotmesh.connect(f"{routers[0]['status']['podIP']}:7071", tls=tls) as mesh:
            endpoint: Any = mesh.endpoint(ENDPOINT)
            assert await endpoint.read(7) == 7
            async with asyncio.timeout(30):
                while not await leads_another():
                    assert await endpoint.read(8) == 8
            await cluster.kubectl("rollout", "restart", "statefulset/controller")
            await cluster.kubectl("rollout", "status", "statefulset/controller", "--timeout=120s", timeout=130)
            assert await endpoint.read(9) == 9
        await operator.run("check", "--wait=20s")
