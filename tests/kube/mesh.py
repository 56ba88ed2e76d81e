"""A mesh in a cluster, and its load: what the tests of whole meshes share.

Replicas are pods of a Deployment (`external`) or of the controller (`kubernetes`). The clients are in this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from slotmesh.cli.controller_view import Members
from slotmesh.cli.operator import Operator
from slotmesh.spec.model import Backend, Mesh
from tests.e2e.session_workload import EASY_PACE_S, Workload, is_patient, running_workload
from tests.history.checker import assert_holds, assert_results
from tests.history.log import HistoryLog, executions_file, read_history
from tests.history.model import Call, Death, Fault, History
from tests.kube.manifests import deployment, service
from tests.kube.rig.api import Document
from tests.kube.rig.cluster import Cluster
from tests.kube.rig.control_plane import ETCD_PORT, EVICTED_SOON
from tests.kube.rig.local_pod import LocalPod
from tests.support.recorder import VARIABLE

Launcher = Literal["external", "kubernetes"]
LAUNCHERS: Final[Sequence[Launcher]] = ("external", "kubernetes")
BACKEND: Final = "Ledger"
HANDLER: Final = "tests.e2e.session_handlers:Ledger"
SETTLED_S: Final = 90.0
PATIENCE: Final = 8.0
"""A control plane and a mesh share two processors with other tests."""
KEYS_MOVE_S: Final = 15.0
"""After this long the keys of a pod that has ended go on elsewhere."""
FIELDS: Final = [
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in (("POD_NAME", "metadata.name"), ("POD_IP", "status.podIP"))
]
_SURGE: Final[Document] = {
    "minReadySeconds": 3,
    "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
}
"""A new pod is there, and connected, before an old one ends."""
_RECREATE: Final[Document] = {"strategy": {"type": "Recreate"}}
LAUNCHER_RULES: Final = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]


class KubeMesh:
    """A controller, routers and replicas of one backend."""

    def __init__(
        self, cluster: Cluster, folder: Path, launcher: Launcher, *, controllers: int = 1, home: str = ""
    ) -> None:
        """With several controllers, their state is in the control plane's etcd, under a name of its own.

        `home`: a node that has controllers, routers and ingresses, and no replica. Empty: pods are where they are.
        """
        self.cluster = cluster
        self.folder = folder
        """Of the history."""
        self.launcher: Launcher = launcher
        self.controllers = controllers
        self.home = home
        zone = f"{cluster.namespace}.svc.cluster.local"
        self.routers = f"dns://{cluster.control_plane.address}/router.{zone}:7071"
        """Where clients find them: by the cluster's DNS."""

    async def start(self, *, replicas: int = 3, routers: int = 2) -> None:
        """Returns when all are there and connected."""
        cluster = self.cluster
        await self._account()
        await cluster.api.create(cluster.path("configmaps"), self._files(replicas))
        for name, port in (("controller", 7070), ("router", 7071), ("ingress", 8080)):
            # Members find the controller that leads themselves, before any probe does.
            document = service(name, port, publishNotReadyAddresses=name == "controller")
            await cluster.api.create(cluster.path("services"), document)
        documents = [self._controller(), self._router(routers), self._ingress()]
        if self.launcher == "external":
            documents.append(self._replicas(replicas))
        for document in documents:
            if self.home:
                self._place(document)
            await cluster.api.create(cluster.path("apps/v1/deployments"), document)
        await self.settled(routers=routers, replicas=replicas)
        for name, count in (("router", routers), ("ingress", 1)):
            await cluster.wait_for_ready(count, selector=f"app={name}")

    async def members(self) -> Members:
        async with Operator.at(self._controller_addresses()) as operator:
            return await operator.members()

    async def settled(
        self, *, routers: int = 2, replicas: int = 3, without: frozenset[str] = frozenset(), timeout: float = SETTLED_S
    ) -> Members:
        """Waits until so many routers have links to exactly so many ready replicas, none of them `without`."""
        seen: object = "nothing"
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        members = await self.members()
                        seen = [(it.replica_id, it.state) for it in members.replicas]
                        ready = members.ready()
                        linked = [set(it.linked_replica_ids) == ready for it in members.routers]
                        if len(ready) == replicas and not ready & without and linked == [True] * routers:
                            return members
                    except Exception as error:  # noqa: BLE001 - of a controller that is starting or moving
                        seen = error
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(
                f"not within {timeout:g} s: {replicas} replicas, {routers} routers: {seen}\n{self.log()}"
            ) from None

    async def replica_ids(self) -> frozenset[str]:
        return (await self.members()).ready()

    async def pod_of(self, replica_id: str) -> LocalPod:
        """The pod in which the replica runs."""
        pid = next(it.pid for it in (await self.members()).replicas if it.replica_id == replica_id)
        return next(pod for node in self.cluster.nodes for pod in node.pods.values() if pid in pod.pids())

    async def scale(self, replicas: int) -> None:
        """To so many replicas, on either path."""
        if self.launcher == "external":
            await self.cluster.kubectl("scale", "deployment", "replica", f"--replicas={replicas}")
        else:
            await self.change(lambda backend: replace(backend, num_replicas=replicas))

    async def change(self, edit: Callable[[Backend], Backend]) -> None:
        """Applies other settings of the backend."""
        async with Operator.at(self._controller_addresses()) as operator:
            (backend,) = (await operator.configuration()).backends
            await operator.apply(Mesh(backends=(edit(backend),)))

    async def restart(self, name: str, timeout: float = 200.0) -> None:
        """A rolling update of a Deployment, to its end."""
        deployed = f"deployment/{name}"
        await self.cluster.kubectl("rollout", "restart", deployed)
        await self.cluster.kubectl("rollout", "status", deployed, f"--timeout={timeout:g}s", timeout=timeout + 30)

    def log(self) -> str:
        """The end of what each pod has printed, for a failed test."""
        pods = [pod for node in self.cluster.nodes for pod in node.pods.values()]
        return "\n".join(f"--- {pod.name}\n{pod.place.log.read_text()[-1500:]}" for pod in pods)

    def pods(self, name: str) -> list[LocalPod]:
        """Of a Deployment, or with the name `replica` those of replicas."""
        pods = [pod for node in self.cluster.nodes for pod in node.pods.values()]
        return [pod for pod in pods if pod.pod["metadata"].get("labels", {}).get("app") == name and not pod.is_gone]

    def _controller_addresses(self) -> str:
        """Raises AssertionError where there is none."""
        pods = self.pods("controller")
        assert pods, "there is no pod of a controller"
        return ",".join(f"{it.place.address}:7070" for it in pods)

    # --- documents ---

    async def _account(self) -> None:
        await self.cluster.account("controller", LAUNCHER_RULES)

    def _files(self, replicas: int) -> Document:
        backend: dict[str, Any] = {"handler": HANDLER, "graceful_timeout": "5s"}
        if self.launcher == "kubernetes":
            backend["num_replicas"] = replicas
        mesh = {"backends": {BACKEND: backend}, "endpoints": {BACKEND: {"traffic": {BACKEND: 1.0}}}}
        template = {"kind": "Pod", "metadata": {"labels": {"app": "replica"}}, "spec": self._replica_spec()}
        return {
            "metadata": {"name": "mesh"},
            "data": {"mesh.yaml": yaml.safe_dump(mesh), "template.yaml": yaml.safe_dump(template)},
        }

    def _place(self, document: Document) -> None:
        if document["metadata"]["name"] != "replica":
            document["spec"]["template"]["spec"]["affinity"] = self._affinity("In")

    def _affinity(self, operator: str) -> Document:
        expression = {"key": "kubernetes.io/hostname", "operator": operator, "values": [self.home]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    def _spread(self) -> Document:
        """Of replicas, over all nodes but `home`."""
        if not self.home:
            return {}
        spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        labels = {"labelSelector": {"matchLabels": {"app": "replica"}}}
        return {"affinity": self._affinity("NotIn"), "topologySpreadConstraints": [{**spread, **labels}]}

    def _container(self, name: str, *arguments: str, port: int, **more: Any) -> Document:
        return {
            "name": name,
            "image": "slotmesh:test",
            "args": [*arguments, f"--port={port}"],
            "env": [*self._environment(), *more.pop("env", [])],
            "ports": [{"containerPort": port, "name": "grpc"}, {"containerPort": 9464, "name": "metrics"}],
            "readinessProbe": {
                "httpGet": {"path": "/readyz", "port": "metrics"},
                "periodSeconds": 1,
                "timeoutSeconds": 5,
            },
            **more,
        }

    def _environment(self) -> list[Document]:
        fixed = {
            # Not 0.0.0.0, which becomes the address of the pod that mounts a template with it.
            "SLOTMESH_HOST": "$(POD_IP)",
            "SLOTMESH_METRICS_HOST": "$(POD_IP)",
            "SLOTMESH_METRICS_PORT": "9464",
            "SLOTMESH_ADVERTISE": "$(POD_IP)",
            VARIABLE: str(executions_file(self.folder)),
        }
        return [*FIELDS, *({"name": name, "value": value} for name, value in fixed.items())]

    def _controller(self) -> Document:
        flags = ["--spec=/etc/mesh/mesh.yaml", f"--launcher={self.launcher}"]
        if self.launcher == "external":
            flags.append("--watch-pods=app=replica")
        else:
            flags += ["--pod-template=/etc/mesh/template.yaml", "--mesh-name=test", "--pod-fence-after=5s"]
        mounts = [{"name": "files", "mountPath": "/etc/mesh"}]
        container = self._container("main", "controller_service", *flags, port=7070, volumeMounts=mounts)
        if self.controllers > 1:
            place = f"{self.cluster.control_plane.address}:{ETCD_PORT}/{self.cluster.namespace}"
            container["env"].append({"name": "SLOTMESH_STATE", "value": f"etcd://{place}"})
        container["readinessProbe"]["httpGet"]["path"] = "/readyz?standbyok"
        document = deployment(
            "controller",
            self.controllers,
            container,
            volumes=[{"name": "files", "configMap": {"name": "mesh"}}],
            serviceAccountName="controller",
            enableServiceLinks=False,
        )
        # Without a shared state there must never be two.
        return document | {"spec": document["spec"] | (_SURGE if self.controllers > 1 else _RECREATE)}

    def _router(self, count: int) -> Document:
        flags = ["--controller=dns:///controller:7070", "--router-id=$(POD_NAME)", "--graceful-timeout=20s"]
        hook = {"preStop": {"sleep": {"seconds": 2}}}
        container = self._container("main", "router_service", *flags, port=7071, lifecycle=hook)
        document = deployment("router", count, container, terminationGracePeriodSeconds=30, enableServiceLinks=False)
        return document | {"spec": document["spec"] | _SURGE}

    def _ingress(self) -> Document:
        flags = ["--routers=dns:///router:7071", "--controller=dns:///controller:7070", "--graceful-timeout=20s"]
        hook = {"preStop": {"sleep": {"seconds": 2}}}
        container = self._container("main", "ingress_service", *flags, port=8080, lifecycle=hook)
        document = deployment("ingress", 1, container, terminationGracePeriodSeconds=30, enableServiceLinks=False)
        return document | {"spec": document["spec"] | _SURGE}

    def _replica_spec(self) -> Document:
        if self.launcher == "kubernetes":
            container = {"name": "replica", "image": "slotmesh:test", "env": self._environment()}
            return {"containers": [container], "tolerations": EVICTED_SOON, **self._spread()}
        flags = ["--controller=dns:///controller:7070", f"--handler={HANDLER}", f"--backend={BACKEND}"]
        flags += ["--replica-id=$(POD_NAME)", "--fence-after=5s"]
        uid = {"name": "SLOTMESH_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
        container = self._container("replica", "replica_service", *flags, port=7072, env=[uid])
        spec: Document = {"containers": [container], "terminationGracePeriodSeconds": 20, "enableServiceLinks": False}
        return {**spec, **self._spread()}

    def _replicas(self, count: int) -> Document:
        document = deployment("replica", count)
        document["spec"]["template"]["spec"] = self._replica_spec()
        return document | {"spec": document["spec"] | _SURGE}


@dataclass(frozen=True, slots=True)
class Run:
    """A mesh under load, and its history."""

    mesh: KubeMesh
    workload: Workload
    log: HistoryLog

    def note(self, what: str, began: float, seen: str, *, holds_calls_s: float = 0.0) -> None:
        """A fault that is over."""
        now = time.monotonic()
        self.log.add(Fault(what=what, at=began, cleared_at=now, seen=seen, holds_calls_s=holds_calls_s))

    def died(self, pids: Sequence[int]) -> None:
        """Processes that executed calls are about to be killed."""
        self.log.add(*(Death(pid=pid, at=time.monotonic()) for pid in pids))

    async def keys_go_on(self, began: float) -> float:
        """Waits until calls of all keys that are made now have outcomes; returns how long after `began` that was."""
        await self.workload.wait_answered(timeout=KEYS_MOVE_S * PATIENCE)
        await self.workload.wait_for_progress(results=20, timeout=KEYS_MOVE_S * PATIENCE)
        return time.monotonic() - began


@asynccontextmanager
async def loaded(mesh: KubeMesh) -> AsyncIterator[Run]:
    """The mesh under load. The test reads the history when the block was left."""
    with HistoryLog(mesh.folder) as log:
        clients = running_workload(BACKEND, [mesh.routers], log, pace_s=EASY_PACE_S, connect_timeout_s=30.0)
        async with clients as workload:
            await workload.wait_loaded()
            yield Run(mesh, workload, log)


def history_of(mesh: KubeMesh) -> History:
    return replace(read_history(mesh.folder), patience=PATIENCE)


def assert_survived(history: History, *, may_fail: frozenset[str] = frozenset()) -> None:
    """Order, at most once, one outcome each; and each patient call has its result, but for those of `may_fail`."""
    assert_holds(history)
    assert_results(history, of=lambda call: is_patient(call) and call.tag not in may_fail)


def lost_with(history: History, seconds: float = 20.0) -> frozenset[str]:
    """Calls that ran on a process that was killed, and that must not run again."""
    calls: dict[str, Call] = {it.tag: it for it in history.calls}
    return frozenset(
        it.tag
        for it in history.outcomes
        if it.reason == "REPLICA_LOST"
        and not calls[it.tag].idempotent
        and any(0 <= it.at - died <= seconds for died in history.deaths.values())
    )
