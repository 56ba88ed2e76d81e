"""The cluster of these tests behaves as one does: pods start, are probed, die, end in order, and are evicted."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.kube.manifests import container, deployment, pod, service
from tests.kube.rig.api import STRATEGIC, Api, ApiRefused, Document
from tests.kube.rig.cluster import Cluster, started_cluster
from tests.kube.rig.control_plane import ADMIN_TOKEN, ControlPlane
from tests.kube.rig.kwok import LABEL, kwok_nodes
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import wait_until, within

pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.timeout(300)]

SERVER = """
import http.server, os, signal, sys
def end(*_):
    print("ended in order", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["POD_NAME"].encode())
    log_message = lambda *_: None
http.server.HTTPServer((os.environ["POD_IP"], 8000), Handler).serve_forever()
"""
FIELDS = [
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in (("POD_NAME", "metadata.name"), ("POD_IP", "status.podIP"))
]

NOT_READY = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
"""What Kubernetes writes of a pod whose node is silent."""


def server(**more: object) -> Document:
    """A container that serves HTTP on port 8000 of its pod's address, and ends with 3 on SIGTERM."""
    probe = {"httpGet": {"port": 8000}, "periodSeconds": 1, "timeoutSeconds": 10}
    return container(SERVER, env=FIELDS, readinessProbe=probe, **more)


async def create(cluster: Cluster, kind: str, document: Document) -> None:
    await cluster.api.create(cluster.path(kind), document)


def terminated(it: Document) -> Document | None:
    statuses = it["status"].get("containerStatuses") or [{}]
    found: Document | None = statuses[0].get("state", {}).get("terminated")
    return found


async def test_pods_of_a_deployment_serve_the_same_port_and_one_that_is_killed_is_started_again(
    cluster: Cluster,
) -> None:
    await create(cluster, "apps/v1/deployments", deployment("web", 3, server()))
    pods = await cluster.wait_for_ready(3)
    for each in pods:
        reader, writer = await asyncio.open_connection(each["status"]["podIP"], 8000)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        answer = await within(reader.read(), "an answer")
        assert answer.endswith(each["metadata"]["name"].encode())
        writer.close()

    name = pods[0]["metadata"]["name"]
    cluster.nodes[0].kill_pod(name)
    again = await cluster.wait_for_pods(
        lambda pods: any(it["status"]["containerStatuses"][0]["restartCount"] == 1 for it in pods), "a restart"
    )
    status = next(it for it in again if it["metadata"]["name"] == name)["status"]["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
    await cluster.wait_for_ready(3)


async def test_a_pod_is_ready_again_after_its_node_was_silent(cluster: Cluster) -> None:
    await create(cluster, "pods", pod("web", server()))
    await cluster.wait_for_ready(1)
    await cluster.api.patch(f"{cluster.path('pods', 'web')}/status", NOT_READY, STRATEGIC)
    await cluster.wait_for_ready(1)


async def test_a_pod_that_is_never_restarted_shows_how_it_ended(cluster: Cluster) -> None:
    await create(cluster, "pods", pod("web", server(), restartPolicy="Never"))
    await cluster.wait_for_ready(1)
    cluster.nodes[0].kill_pod("web")
    (ended,) = await cluster.wait_for_pods(lambda pods: pods[0]["status"]["phase"] == "Failed", "the end")
    assert (terminated(ended) or {})["exitCode"] == 137


async def test_a_deleted_pod_runs_its_hook_and_ends_in_order_and_shows_it_before_it_is_gone(cluster: Cluster) -> None:
    stopping = {"preStop": {"exec": {"command": ["python", "-c", "print('asked before', flush=True)"]}}}
    await create(cluster, "pods", pod("web", server(lifecycle=stopping), restartPolicy="Never"))
    await cluster.wait_for_ready(1)
    log = cluster.nodes[0].pod("web").place.log
    seen: list[Document | None] = []

    async def watch() -> None:
        async for kind, item in cluster.api.observe(cluster.path("pods")):
            if kind != "LISTED":
                seen.append(terminated(item))
            if kind == "DELETED":
                return

    watching = asyncio.ensure_future(watch())
    await cluster.kubectl("delete", "pod", "web", "--wait=false")
    await within(watching, "the end of the pod", timeout=60)
    assert [it["exitCode"] for it in seen if it is not None][-1] == 3
    assert log.read_text().split("\n")[:2] == ["asked before", "ended in order"]


async def test_what_ignores_sigterm_is_killed_after_its_grace(cluster: Cluster) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    await create(cluster, "pods", pod("stubborn", container(stubborn), terminationGracePeriodSeconds=1))
    await cluster.wait_for_ready(1)
    local = cluster.nodes[0].pod("stubborn")
    await wait_until(lambda: "up" in local.place.log.read_text())
    await cluster.kubectl("delete", "pod", "stubborn")
    assert not local.pids()


async def test_drain_evicts_pods_and_others_run_elsewhere(control_plane: ControlPlane, tmp_path: Path) -> None:
    async with started_cluster(control_plane, tmp_path, nodes=2) as cluster:
        await create(cluster, "apps/v1/deployments", deployment("web", 2, server()))
        await cluster.wait_for_ready(2)
        await cluster.kubectl("drain", "node-0", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
        pods = await cluster.wait_for_ready(2)
        assert {it["spec"]["nodeName"] for it in pods} == {"node-1"}
        assert not cluster.nodes[0].pods


async def test_pods_of_a_lost_node_run_on_until_it_returns(control_plane: ControlPlane, tmp_path: Path) -> None:
    # Where all nodes are lost, Kubernetes assumes that it is the one that is cut off.
    async with started_cluster(control_plane, tmp_path, nodes=3) as cluster:
        await create(cluster, "pods", pod("web", server(), restartPolicy="Never"))
        await cluster.wait_for_ready(1)
        node = cluster.node_of("web")
        local = node.pod("web")
        await node.lose()
        await cluster.wait_for_pods(lambda pods: "deletionTimestamp" in pods[0]["metadata"], "the eviction")
        assert local.pids()
        await cluster.kubectl("delete", "pod", "web", "--force", "--grace-period=0")
        assert local.pids()
        node.reconnect()
        await wait_until(lambda: not local.pids())


async def test_volumes_variables_and_a_service_account_are_as_the_pod_says(cluster: Cluster) -> None:
    config = {"metadata": {"name": "conf"}, "data": {"mesh.yaml": "secret: /etc/keys/key\n", "LEVEL": "7"}}
    await create(cluster, "configmaps", config)
    await create(cluster, "secrets", {"metadata": {"name": "keys"}, "stringData": {"key": "hidden"}})
    program = (
        "import os, sys; text = open(sys.argv[1]).read(); print(text, open(text.split()[1]).read(), sys.argv[2], "
        "os.environ['LEVEL'], 'serviceaccount' in os.environ['TOKEN'], os.path.exists(os.environ['KUBECONFIG']))"
    )
    main = container(
        program,
        args=["/etc/mesh/mesh.yaml", "--listen=0.0.0.0:$(PORT)"],
        env=[
            {"name": "PORT", "value": "7071"},
            {"name": "TOKEN", "value": "/var/run/secrets/kubernetes.io/serviceaccount/token"},
        ],
        envFrom=[{"configMapRef": {"name": "conf"}}],
        volumeMounts=[{"name": "conf", "mountPath": "/etc/mesh"}, {"name": "keys", "mountPath": "/etc/keys"}],
    )
    volumes = [{"name": "conf", "configMap": {"name": "conf"}}, {"name": "keys", "secret": {"secretName": "keys"}}]
    await create(cluster, "pods", pod("reader", main, volumes=volumes, restartPolicy="Never"))
    (ended,) = await cluster.wait_for_pods(lambda pods: terminated(pods[0]), "the end")
    assert (terminated(ended) or {})["exitCode"] == 0
    local = cluster.nodes[0].pod("reader")
    printed = local.place.log.read_text().split()
    assert printed[2:] == ["hidden", f"--listen={local.place.address}:7071", "7", "False", "True"]


async def test_a_claimed_volume_outlives_the_pod_of_a_stateful_set(cluster: Cluster) -> None:
    program = "import time, sys; open(sys.argv[1] + '/starts', 'a').write('x'); time.sleep(600)"
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    main = container(program, args=["/data"], volumeMounts=[{"name": "data", "mountPath": "/data"}])
    kept = deployment("kept", 1, main)
    kept["kind"] = "StatefulSet"
    kept["spec"] |= {"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}], "serviceName": "kept"}
    await create(cluster, "apps/v1/statefulsets", kept)
    (pod_1,) = await cluster.wait_for_ready(1)
    starts = cluster.nodes[0].pod("kept-0").contents.volume("data").resolve() / "starts"
    await wait_until(lambda: starts.exists() and starts.read_text() == "x")
    await cluster.kubectl("delete", "pod", "kept-0")
    (pod_2,) = await cluster.wait_for_ready(1)
    assert pod_1["metadata"]["uid"] != pod_2["metadata"]["uid"]
    await wait_until(lambda: starts.read_text() == "xx")


async def test_the_name_of_a_service_leads_to_its_ready_pods(cluster: Cluster) -> None:
    if cluster.dns is None:
        pytest.skip("NO ROOT: DNS of the cluster needs port 53; nothing shows that names of Services are found")
    await create(cluster, "services", service("web", 8000))
    await create(cluster, "apps/v1/deployments", deployment("web", 2, server()))
    pods = await cluster.wait_for_ready(2)
    program = "import socket; print(sorted(it[4][0] for it in socket.getaddrinfo('web', 80, type=socket.SOCK_STREAM)))"
    await create(cluster, "pods", pod("asking", container(program), restartPolicy="Never"))
    await cluster.wait_for_pods(lambda pods: any(map(terminated, pods)), "the end")
    printed = cluster.nodes[0].pod("asking").place.log.read_text()
    assert printed == f"{sorted(it['status']['podIP'] for it in pods)}\n"


@pytest.mark.long
async def test_kwok_reports_hundreds_of_pods_as_running_and_ends_them(cluster: Cluster) -> None:
    async with kwok_nodes(cluster.control_plane) as (node,):
        many = deployment("many", 200, container(""), nodeSelector={LABEL: "yes"})
        await create(cluster, "apps/v1/deployments", many)
        pods = await cluster.wait_for_ready(200)
        assert {it["spec"]["nodeName"] for it in pods} == {node}
        path = f"{cluster.path('pods', pods[0]['metadata']['name'])}/status"
        await cluster.api.patch(path, NOT_READY, STRATEGIC)
        await cluster.wait_for_ready(200)
        await cluster.kubectl("scale", "deployment", "many", "--replicas=3")
        await cluster.wait_for_ready(3)


async def test_an_account_may_do_what_its_role_says_and_no_more(cluster: Cluster) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    config = json.loads((await cluster.account("launcher", rules)).read_text())
    token, ca = config["users"][0]["user"]["token"], str(cluster.control_plane.ca)
    async with Api(cluster.control_plane.server, token, ca) as api:
        await api.get(cluster.path("pods"))
        with pytest.raises(ApiRefused, match="403"):
            await api.get(cluster.path("configmaps"))
        await cluster.api.delete(cluster.path("rbac.authorization.k8s.io/v1/roles", "launcher"))

        async def refused() -> None:
            while True:
                await api.get(cluster.path("pods"))

        with pytest.raises(ApiRefused, match="403"):
            await within(refused(), "a refusal")


async def test_a_watch_through_a_stalled_proxy_stays_open_and_silent(
    control_plane: ControlPlane, cluster: Cluster, api_proxy: TcpProxy
) -> None:
    names: list[str] = []

    async def watch(api: Api) -> None:
        async for kind, item in api.observe(cluster.path("configmaps")):
            names.append(kind if kind == "LISTED" else item["metadata"]["name"])

    async with Api(f"https://{api_proxy.address}", ADMIN_TOKEN, str(control_plane.ca)) as api:
        watching = asyncio.ensure_future(watch(api))
        await wait_until(lambda: names)
        await create(cluster, "configmaps", {"metadata": {"name": "before"}})
        await wait_until(lambda: "before" in names)
        api_proxy.stall()
        await create(cluster, "configmaps", {"metadata": {"name": "during"}})
        await wait_until(lambda: api_proxy.held_bytes > 0)
        assert "during" not in names
        assert not watching.done()
        api_proxy.heal()
        await wait_until(lambda: "during" in names)
        watching.cancel()
        await asyncio.wait([watching])


@pytest.mark.long
async def test_a_watch_that_resumes_before_a_compaction_is_refused(
    control_plane: ControlPlane, cluster: Cluster
) -> None:
    listed = await cluster.api.get(cluster.path("configmaps"))
    old = listed["metadata"]["resourceVersion"]
    for number in range(3):
        await create(cluster, "configmaps", {"metadata": {"name": f"map-{number}"}})
    control_plane.compact()
    control_plane.kill()
    control_plane.restart()
    await asyncio.to_thread(control_plane.wait_ready)
    printed = await cluster.kubectl(
        "get", "--raw", f"{cluster.path('configmaps')}?watch=1&resourceVersion={old}&timeoutSeconds=5"
    )
    assert '"code":410' in printed
