"""What a test has of a cluster: a namespace of its own, nodes, DNS, and clients."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.kube.rig.api import Api, ApiRefused, Document
from tests.kube.rig.cluster_dns import ClusterDns, cluster_dns
from tests.kube.rig.control_plane import ADMIN_TOKEN, ControlPlane
from tests.kube.rig.local_pod import Image
from tests.kube.rig.node import Node
from tests.kube.rig.volumes import provisioned_claims

WAIT_S: Final = 120.0


class Cluster:
    """A namespace of a control plane, with nodes that are there as long as it is."""

    def __init__(self, control_plane: ControlPlane, api: Api, namespace: str) -> None:
        self.control_plane = control_plane
        self.api = api
        self.namespace = namespace
        self.nodes: list[Node] = []
        self.dns: ClusterDns | None = None
        """None without root, which port 53 takes."""

    def path(self, kind: str, name: str = "") -> str:
        """Of the API: `path("pods")`, `path("apps/v1/deployments", "echo")`."""
        group, _, plural = kind.rpartition("/")
        root = f"/apis/{group}" if group else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{plural}{f'/{name}' if name else ''}"

    async def kubectl(self, *arguments: str, stdin: str = "", timeout: float = 60.0) -> str:
        """What it prints; of the namespace unless told otherwise. Raises AssertionError where it fails."""
        flags = ("--namespace", self.namespace)
        return await asyncio.to_thread(self.control_plane.kubectl, *flags, *arguments, stdin=stdin, timeout=timeout)

    async def pods(self, selector: str = "") -> list[Document]:
        """As the API has them, oldest first."""
        listed = await self.api.get(self.path("pods"), labelSelector=selector)
        return _by_age({it["metadata"]["uid"]: it for it in listed["items"]})

    async def wait_for_pods(
        self, is_right: Callable[[list[Document]], object], what: str, *, selector: str = "", timeout: float = WAIT_S
    ) -> list[Document]:
        """Waits until the pods are as they should be; returns them, oldest first."""
        found: dict[str, Document] = {}

        async def watch() -> list[Document]:
            async with aclosing(self.api.observe(self.path("pods"), labelSelector=selector)) as changes:
                async for kind, item in changes:
                    if kind == "LISTED":
                        found.clear()
                    for pod in item.get("items", [item]):
                        found[pod["metadata"]["uid"]] = pod
                    if kind == "DELETED":
                        del found[item["metadata"]["uid"]]
                    if is_right(pods := _by_age(found)):
                        return pods
            raise AssertionError("unreachable: a watch never ends")

        try:
            async with asyncio.timeout(timeout):
                return await watch()
        except TimeoutError:
            raise AssertionError(f"not within {timeout:g} s: {what}\n{shown(_by_age(found))}") from None

    async def wait_for_ready(self, count: int, *, selector: str = "", timeout: float = WAIT_S) -> list[Document]:
        """Waits until there are exactly this many pods, all ready and none about to end."""
        return await self.wait_for_pods(
            lambda pods: len(pods) == count and all(map(is_ready, pods)),
            f"{count} ready pods {selector}",
            selector=selector,
            timeout=timeout,
        )

    async def account(self, name: str, rules: list[Document], *, server: str = "") -> Path:
        """A service account that may do what `rules` say; returns a kubeconfig with a token of it.

        Its role has its name: a test that changes or deletes `path("rbac.authorization.k8s.io/v1/roles", name)` changes
        what it may do. `server`: a proxy's, if not the API server's own.
        """
        rbac = "rbac.authorization.k8s.io"
        await self.api.create(self.path("serviceaccounts"), {"metadata": {"name": name}})
        await self.api.create(self.path(f"{rbac}/v1/roles"), {"metadata": {"name": name}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        reference = {"apiGroup": rbac, "kind": "Role", "name": name}
        binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": reference}
        await self.api.create(self.path(f"{rbac}/v1/rolebindings"), binding)
        token = await self.api.create(f"{self.path('serviceaccounts', name)}/token", {"spec": {"audiences": []}})
        path = self.control_plane.directory / f"{self.namespace}-{name}.conf"
        self.control_plane.write_kubeconfig(path, token["status"]["token"], server=server, namespace=self.namespace)
        return path

    def node_of(self, pod: str) -> Node:
        """The node that runs the pod. Raises StopIteration."""
        return next(node for node in self.nodes if any(it.name == pod for it in node.pods.values()))


@asynccontextmanager
async def started_cluster(
    control_plane: ControlPlane, directory: Path, *, nodes: int = 1, images: Mapping[str, Image] | None = None
) -> AsyncIterator[Cluster]:
    """A namespace, and nodes named `node-0` and so on; everything is removed when the block is left."""
    namespace = f"test-{uuid4().hex[:8]}"
    control_plane.recover()
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(Api(control_plane.server, ADMIN_TOKEN, str(control_plane.ca)))
        await api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        cluster = Cluster(control_plane, api, namespace)
        stack.push_async_callback(_delete_pods, cluster)
        await stack.enter_async_context(provisioned_claims(api, namespace, directory / "volumes"))
        if os.geteuid() == 0:
            cluster.dns = await stack.enter_async_context(cluster_dns(control_plane))
        resolver = control_plane.address if cluster.dns else ""
        for number in range(nodes):
            node = Node(control_plane, f"node-{number}", directory / f"node-{number}", images=images, resolver=resolver)
            cluster.nodes.append(await stack.enter_async_context(node))
        async with asyncio.timeout(WAIT_S):
            for node in cluster.nodes:
                await node.wait_ready()
            await _wait_for_account(cluster)
        try:
            yield cluster
        finally:
            await api.delete(f"/api/v1/namespaces/{namespace}")


async def _delete_pods(cluster: Cluster) -> None:
    """Deletes what the nodes have left, which nodes of the next test would run: they have the same names."""
    async with asyncio.timeout(WAIT_S):
        while pods := await cluster.pods():
            for pod in pods:
                with suppress(ApiRefused):
                    await cluster.api.delete(cluster.path("pods", pod["metadata"]["name"]), grace_s=0)


async def _wait_for_account(cluster: Cluster) -> None:
    """Waits for the default service account, without which no pod is admitted."""
    while True:
        try:
            await cluster.api.get(cluster.path("serviceaccounts", "default"))
            return
        except ApiRefused as refused:
            if refused.code != 404:
                raise
            await asyncio.sleep(0.05)


def _by_age(pods: Mapping[str, Document]) -> list[Document]:
    return sorted(pods.values(), key=lambda it: (it["metadata"]["creationTimestamp"], it["metadata"]["name"]))


def is_ready(pod: Document) -> bool:
    """Whether the pod is ready, and not about to end."""
    conditions = pod["status"].get("conditions", ())
    ready = any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def shown(pods: list[Document]) -> str:
    """Pods in a line each."""
    return "\n".join(
        f"{pod['metadata']['name']} {pod['status'].get('phase')} on {pod['spec'].get('nodeName')}"
        f"{' ending' if 'deletionTimestamp' in pod['metadata'] else ''}{' ready' if is_ready(pod) else ''} "
        f"{[it.get('state') for it in pod['status'].get('containerStatuses', ())]}"
        for pod in pods
    )
