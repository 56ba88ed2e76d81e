"""A kubelet whose pods are processes of this machine: it registers a node, sends heartbeats and runs bound pods.

Real in it: heartbeats (Lease), phases, conditions, probes, hooks, grace, exit codes, restarts, volumes of ConfigMaps,
Secrets and service accounts, environment, addresses of pods, logs (`log_server`). Not real: images
(see `Image`), limits, users, a file system of the container's own, kube-proxy (names of Services lead to their pods:
`cluster_dns`).

Owner: the test, on its event loop. When it closes, no process is left, and neither are its pods and its node.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from tests.kube.rig.api import APPLY, STRATEGIC, UNREACHABLE, Api, ApiRefused, Document
from tests.kube.rig.container import Place, timestamp
from tests.kube.rig.control_plane import ADMIN_TOKEN, ControlPlane
from tests.kube.rig.local_pod import Image, LocalPod
from tests.kube.rig.log_server import LogServer, serving_logs

HEARTBEAT_S: Final = 2.0
CAPACITY: Final = {"cpu": "64", "memory": "256Gi", "pods": "250", "ephemeral-storage": "100Gi"}


class Node:
    """One node; `async with` starts and closes it."""

    def __init__(
        self,
        control_plane: ControlPlane,
        name: str,
        directory: Path,
        *,
        images: Mapping[str, Image] | None = None,
        resolver: str = "",
        labels: Mapping[str, str] | None = None,
        server: str = "",
    ) -> None:
        """`resolver`: address of a DNS server on port 53. `server`: of a proxy before the API server."""
        self.name = name
        self.pods: dict[str, LocalPod] = {}
        """By uid."""
        self.logs: LogServer
        """Once it is started."""
        self.images: Mapping[str, Image] = images or {}
        self._control_plane = control_plane
        self._directory = directory
        self._resolver = resolver
        self._labels = dict(labels or {})
        self._api = Api(server or control_plane.server, ADMIN_TOKEN, str(control_plane.ca))
        self._connected = asyncio.Event()
        self._connected.set()
        self._subnet = f"127.{random.randint(100, 250)}.{random.randint(0, 255)}"
        self._host_parts = list(range(1, 255))
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._errors: list[BaseException] = []
        self._serving = AsyncExitStack()
        self._own: list[asyncio.Task[None]] = []

    def pod(self, name: str) -> LocalPod:
        """The pod of this name that came last. Raises KeyError."""
        for pod in reversed(self.pods.values()):
            if pod.name == name:
                return pod
        raise KeyError(name)

    # --- what breaks ---

    def kill_pod(self, name: str) -> None:
        """SIGKILL to the first process of each container, as by the kernel when memory is short."""
        self.signal_pod(name, signal.SIGKILL)

    def freeze_pod(self, name: str) -> None:
        """All processes of the pod stop, and start again with `thaw_pod`."""
        self._signal_all(name, signal.SIGSTOP)

    def thaw_pod(self, name: str) -> None:
        self._signal_all(name, signal.SIGCONT)

    def signal_pod(self, name: str, number: signal.Signals) -> None:
        for container in self.pod(name).containers:
            container.signal(number)

    def disconnect(self) -> None:
        """The node loses the API server: no heartbeat, no status, no order. Its pods run on."""
        self._connected.clear()
        self.logs.is_reached = False
        self.logs.cut()
        for task in self._own:
            task.cancel()

    def reconnect(self) -> None:
        self._connected.set()
        self.logs.is_reached = True
        self._own = [asyncio.ensure_future(self._beat()), asyncio.ensure_future(self._observe())]

    async def lose(self) -> None:
        """Disconnects, and the API has of the node what it would have after the grace of its heartbeats."""
        self.disconnect()
        lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "is lost"}
        await self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": {"conditions": [lost]}}, STRATEGIC)

    def vanish(self) -> None:
        """The node disconnects, and its processes stand still: for all others it is silent, as without its network."""
        self.disconnect()
        for pid in [pid for pod in self.pods.values() for pid in pod.pids()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def lose_power(self) -> None:
        """The node disconnects, its processes end, and none is started again."""
        self.disconnect()
        for task in self._tasks.values():
            task.cancel()

    # --- life ---

    async def __aenter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self.logs = await self._serving.enter_async_context(serving_logs(self.pod, self._control_plane.tls))
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", **self._labels}
        with suppress(ApiRefused):  # it is there already
            await self._api.create("/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}})
        await self._send_heartbeat()
        self.reconnect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._own, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for pod in self.pods.values():
            pod.kill()
            with suppress(ApiRefused, *UNREACHABLE):
                await self._api.delete(pod.path, grace_s=0, uid=pod.uid)
        with suppress(ApiRefused, *UNREACHABLE):
            await self._api.delete(f"/api/v1/nodes/{self.name}")
        await self._serving.aclose()
        await self._api.__aexit__(kind, error, trace)
        if self._errors:
            raise self._errors[0]

    async def wait_ready(self, timeout: float = 30.0) -> None:
        """Waits until pods may be bound to the node."""
        tainted = True
        while tainted:
            node = await self._api.get(f"/api/v1/nodes/{self.name}")
            tainted = any(it["key"].startswith("node.kubernetes.io/") for it in node["spec"].get("taints", ()))
            await asyncio.sleep(0.05)

    async def _beat(self) -> None:
        while True:
            with suppress(ApiRefused, *UNREACHABLE):
                await self._send_heartbeat()
            await asyncio.sleep(HEARTBEAT_S)

    async def _send_heartbeat(self) -> None:
        now = timestamp()
        condition = {"type": "Ready", "status": "True", "reason": "Processes", "message": "pods are processes"}
        status = {
            "capacity": CAPACITY,
            "allocatable": CAPACITY,
            "conditions": [{**condition, "lastHeartbeatTime": now, "lastTransitionTime": now}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.logs.port}},
        }
        await self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease: Document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": self.name, "leaseDurationSeconds": 10, "renewTime": renewed},
        }
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self.name}"
        await self._api.patch(path, lease, APPLY, fieldManager="kubelet", force="true")

    async def _observe(self) -> None:
        async for kind, item in self._api.observe("/api/v1/pods", fieldSelector=f"spec.nodeName={self.name}"):
            if kind == "LISTED":
                listed = {pod["metadata"]["uid"]: pod for pod in item["items"]}
                for uid in self.pods.keys() - listed.keys():
                    self.pods[uid].forget()
                for pod in listed.values():
                    self._see(pod)
            elif kind == "DELETED":
                if known := self.pods.get(item["metadata"]["uid"]):
                    known.forget()
            else:
                self._see(item)

    def _see(self, pod: Document) -> None:
        uid = pod["metadata"]["uid"]
        known = self.pods.get(uid)
        if known is None:
            known = self._start(pod)
        known.compare(pod)
        if "deletionTimestamp" in pod["metadata"]:
            key = f"end of {uid}"
            if key not in self._tasks:
                grace_s = pod["metadata"].get("deletionGracePeriodSeconds", 0)
                self._tasks[key] = asyncio.ensure_future(known.end(grace_s))

    def _start(self, pod: Document) -> LocalPod:
        uid, namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]
        base = self._directory / f"{pod['metadata']['name']}-{uid[:8]}"
        base.mkdir(parents=True)
        # The one that was given back first is taken first.
        address = f"{self._subnet}.{self._host_parts.pop(0)}"
        place = Place(address, uuid4().hex, self._cwd_of(pod), base / "pod.log", self._resolver_for(namespace))
        local = LocalPod(
            self._api,
            pod,
            place,
            images=self.images,
            base=base,
            write_kubeconfig=lambda path, token: self._control_plane.write_kubeconfig(path, token, namespace=namespace),
        )
        self.pods[uid] = local
        task = self._tasks[uid] = asyncio.ensure_future(local.run(self._connected))
        task.add_done_callback(partial(self._ended, local))
        return local

    def _ended(self, pod: LocalPod, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)
        self.pods.pop(pod.uid, None)
        self._tasks.pop(pod.uid, None)
        self._host_parts.append(int(pod.place.address.rsplit(".", 1)[1]))

    def _cwd_of(self, pod: Document) -> Path:
        image = self.images.get(pod["spec"]["containers"][0]["image"]) or Image()
        return image.cwd

    def _resolver_for(self, namespace: str) -> Path | None:
        if not self._resolver:
            return None
        path = self._directory / f"resolv-{namespace}.conf"
        zone = "svc.cluster.local"
        path.write_text(
            f"nameserver {self._resolver}\nsearch {namespace}.{zone} {zone} cluster.local\n"
            "options ndots:5 timeout:2 attempts:3\n"
        )
        return path

    def _signal_all(self, name: str, number: signal.Signals) -> None:
        for pid in self.pod(name).pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
