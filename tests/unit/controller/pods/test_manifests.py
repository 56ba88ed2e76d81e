"""Pods from a template and an order, and orders from pods."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller_service.core.pods.states import PodView, view_of
from controller_service.core.roster import HeldTable
from controller_service.shell.launchers.kubernetes.container_settings import container_violations
from controller_service.shell.launchers.kubernetes.manifests import (
    LOST_NODE_S,
    PodManifests,
    load_template,
    order_of,
    pod_name,
    selector_of,
)
from controller_service.shell.launchers.protocol import LaunchFailed, LaunchOrder
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.environment import THREAD_VARIABLES, EnvironmentValue, ProcessSettings
from slotmesh.spec.model import Backend, PodSettings
from tests.support.pods import pod_document

ORDER = LaunchOrder(
    backend="Shop.v1_",
    handler="app:Cart",
    template="0123",
    fixed="45",
    handler_version="7",
    version=HeldTable(generation="g", revision=3, term_id="t"),
    pod=PodSettings(image="registry/shop:7", cpu="500m", memory="1Gi"),
    graceful_timeout_s=60.0,
)


def manifests(template: str = "") -> PodManifests:
    bare: dict[str, Any] = {"spec": {"containers": [{"name": "replica"}]}}
    return PodManifests(
        mesh="default",
        template=yaml.safe_load(template) if template else bare,
        controllers=lambda: ["10.0.0.1:7070", "10.0.0.2:7070"],
        orphan_timeout=timedelta(minutes=5),
        fence_after=timedelta(minutes=1),
    )


def test_a_pod_without_a_template_has_all_that_a_replica_needs() -> None:
    assert manifests().pod_of(ORDER, "Shop.v1_-abc", None) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "shop-v1-abc",
            "labels": {
                "slotmesh.dev/mesh": "default",
                "slotmesh.dev/backend": "Shop.v1",
                "slotmesh.dev/template": "0123",
            },
            "annotations": {
                "slotmesh.dev/replica-id": "Shop.v1_-abc",
                "slotmesh.dev/backend": "Shop.v1_",
                "slotmesh.dev/handler": "app:Cart",
                "slotmesh.dev/template": "0123",
                "slotmesh.dev/fixed": "45",
                "slotmesh.dev/handler-version": "7",
                "slotmesh.dev/generation": "g",
                "slotmesh.dev/revision": "3",
                "slotmesh.dev/term-id": "t",
                "slotmesh.dev/container": "replica",
            },
        },
        "spec": {
            "tolerations": LOST_NODE,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 75,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,
            "containers": [
                {
                    "name": "replica",
                    "image": "registry/shop:7",
                    "command": ["python", "-m", "replica_service"],
                    "args": [
                        "--handler=app:Cart",
                        "--backend=Shop.v1_",
                        "--replica-id=Shop.v1_-abc",
                        "--controller=10.0.0.1:7070,10.0.0.2:7070",
                        "--host=$(POD_IP)",
                        "--orphan-timeout=5m",
                        "--fence-after=1m",
                    ],
                    "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                }
            ],
        },
    }


TEMPLATE = """
apiVersion: v1
kind: Pod
metadata: {name: ignored, namespace: ignored, labels: {team: a, slotmesh.dev/mesh: no}, annotations: {x: y}}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 600
  automountServiceAccountToken: true
  nodeSelector: {gpu: "yes"}
  containers:
  - {name: sidecar, image: s:1}
  - name: replica
    image: registry/base:1
    command: [/app/run]
    args: [--log-level=debug]
    env: [{name: SLOTMESH_HOST, value: 0.0.0.0}, {name: SLOTMESH_CONTROLLER, value: "dns:///c:7070"}]
    resources: {requests: {cpu: "1", nvidia.com/gpu: "1"}, limits: {nvidia.com/gpu: "1"}}
"""


LOST_NODE = [
    {"key": f"node.kubernetes.io/{it}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_S}
    for it in ("not-ready", "unreachable")
]


@pytest.mark.parametrize(
    ("own", "added"),
    [
        ([], LOST_NODE),
        ([{"key": "gpu", "operator": "Exists"}], LOST_NODE),
        ([{"key": "node.kubernetes.io/not-ready", "tolerationSeconds": 600}], LOST_NODE[1:]),
        ([{"operator": "Exists"}], []),
    ],
    ids=["none", "of something else", "one of both", "of everything"],
)
def test_pods_leave_lost_nodes_soon_unless_the_template_says_when(own: list[Any], added: list[Any]) -> None:
    template = yaml.safe_dump({"spec": {"containers": [{"name": "replica"}], "tolerations": own}})
    assert manifests(template).pod_of(ORDER, "v1-abc", None)["spec"]["tolerations"] == own + added


def test_what_the_template_has_stays_but_for_the_identity_and_the_end() -> None:
    made = manifests(TEMPLATE).pod_of(ORDER, "v1-abc", {"kind": "ConfigMap", "uid": "u"})
    metadata, spec = made["metadata"], made["spec"]
    assert metadata["name"] == "v1-abc"
    assert "namespace" not in metadata
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"]["slotmesh.dev/mesh"] == "default"
    assert metadata["annotations"]["x"] == "y"
    assert metadata["ownerReferences"] == [{"kind": "ConfigMap", "uid": "u"}]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 600)
    assert (spec["automountServiceAccountToken"], spec["nodeSelector"]) == (True, {"gpu": "yes"})
    sidecar, replica = spec["containers"]
    assert sidecar == {"name": "sidecar", "image": "s:1"}
    assert (replica["image"], replica["command"]) == ("registry/shop:7", ["/app/run"])
    assert replica["args"] == [
        "--log-level=debug",
        "--handler=app:Cart",
        "--backend=Shop.v1_",
        "--replica-id=v1-abc",
        "--orphan-timeout=5m",
        "--fence-after=1m",
    ]
    assert replica["resources"] == {
        "requests": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "1Gi", "nvidia.com/gpu": "1"},
    }


def test_no_policy_of_a_container_restarts_the_replica_in_its_pod() -> None:
    rules = "[{action: RestartAllContainers, exitCodes: {operator: In, values: [1]}}]"
    made = manifests(
        f"""
spec:
  initContainers: [{{name: proxy, image: p:1, restartPolicy: Always, restartPolicyRules: {rules}}}]
  containers: [{{name: server, image: s:1, restartPolicy: OnFailure, restartPolicyRules: {rules}}}]
"""
    ).pod_of(ORDER, "v1-abc", None)
    assert made["spec"]["initContainers"] == [{"name": "proxy", "image": "p:1", "restartPolicy": "Always"}]
    assert not {"restartPolicy", "restartPolicyRules"} & {*made["spec"]["containers"][0]}
    assert made["metadata"]["annotations"]["slotmesh.dev/container"] == "server"


def test_pods_do_not_share_what_the_template_has() -> None:
    maker = manifests(TEMPLATE)
    first = maker.pod_of(ORDER, "v1-a", None)
    assert maker.pod_of(ORDER, "v1-a", None) == first
    assert len(maker.template["spec"]["containers"][1]["args"]) == 1


def test_a_backend_without_an_image_is_not_started() -> None:
    with pytest.raises(LaunchFailed, match=r"backend v1 names no image: set `pod: \{image: …\}`"):
        manifests().pod_of(LaunchOrder(backend="v1", handler="a:B"), "v1-abc", None)


def test_the_order_of_a_pod_is_the_one_that_it_was_made_with() -> None:
    made = manifests(TEMPLATE).pod_of(ORDER, "Shop.v1_-abc", None)
    found = order_of(view_of(made))
    assert found is not None
    assert found == ("Shop.v1_-abc", ORDER)
    assert found[1].version == ORDER.version


@pytest.mark.parametrize("missing", ["replica-id", "revision", "backend"])
def test_a_pod_that_another_has_labelled_is_none_of_ours(missing: str) -> None:
    annotations = dict(manifests().pod_of(ORDER, "v1-abc", None)["metadata"]["annotations"])
    del annotations[f"slotmesh.dev/{missing}"]
    assert order_of(view_of(pod_document(annotations=annotations))) is None
    assert order_of(PodView(name="", uid="", stage=view_of({}).stage)) is None


@pytest.mark.parametrize(
    ("replica_id", "name"), [("v1-abc", "v1-abc"), ("A_b.C-x2", "a-b-c-x2"), ("v1.-_-abc", "v1-abc")]
)
def test_names_of_pods_are_names_of_hosts(replica_id: str, name: str) -> None:
    assert pod_name(replica_id) == name


def test_the_selector_leaves_out_pods_that_others_start() -> None:
    assert selector_of("m1") == "slotmesh.dev/mesh=m1,slotmesh.dev/template"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("{", "while parsing"),
        ("kind: Deployment\nspec: {}", "must be one Pod in YAML"),
        ("- a", "must be one Pod in YAML"),
        ("spec: {}", "spec.containers must list containers"),
        ("spec: {containers: [{image: a}]}", "each with a name"),
        ("spec: {containers: [{name: a}, {name: b}]}", "has 2 containers: name the replica's 'replica'"),
    ],
)
def test_a_template_that_is_no_pod_is_refused(text: str | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(CannotStart, match=problem) as refused:
        load_template(path)
    assert f"--pod-template {path}: " in str(refused.value)


def test_devices_are_limits_of_the_container() -> None:
    order = replace(ORDER, wanted_devices={"cuda": 2.0})
    made = replace(manifests(), device_resources={"cuda": "nvidia.com/gpu"}).pod_of(order, "a", None)
    (container,) = made["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu": "2"}
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}


def container_of(process: ProcessSettings, pod: PodSettings | None = None, template: str = "") -> dict[str, Any]:
    order = replace(ORDER, process=process, pod=pod or PodSettings(image="shop"))
    container: dict[str, Any] = manifests(template).pod_of(order, "v1-abc", None)["spec"]["containers"][0]
    return container


def test_settings_of_processes_are_those_of_the_container() -> None:
    settings = ProcessSettings(
        env={"A": EnvironmentValue(value="$(B) $x"), "MKL_NUM_THREADS": EnvironmentValue(value="9")},
        python="/opt/venv",
        cwd="/srv",
        cpus=1.25,
        memory=64 << 20,
    )
    template = "spec: {containers: [{name: replica, env: [{name: A, value: old}, {name: C, value: c}]}]}"
    container = container_of(settings, template=template)
    assert (container["command"], container["workingDir"]) == (
        ["/opt/venv/bin/python", "-m", "replica_service"],
        "/srv",
    )
    amounts = {"cpu": "1250m", "memory": "67108864"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    found = {it["name"]: it.get("value") for it in container["env"]}
    threads = dict.fromkeys(THREAD_VARIABLES, "2") | {"MKL_NUM_THREADS": "9"}
    assert found == {"A": "$$(B) $x", "C": "c", "POD_IP": None, **threads}
    assert len(found) == len(container["env"])
    assert container_of(ProcessSettings(python="/usr/bin/python3.12"))["command"][0] == "/usr/bin/python3.12"


def test_resources_of_the_pod_go_before_those_of_processes() -> None:
    pod = PodSettings(image="shop", cpu="100m", memory="1Gi")
    both = container_of(ProcessSettings(cpus=2.0, memory=1 << 30), pod)["resources"]
    assert both == {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    memory = container_of(ProcessSettings(memory=1 << 30), PodSettings(image="shop", cpu="100m"))["resources"]
    assert memory == {"requests": {"cpu": "100m", "memory": "1073741824"}, "limits": {"memory": "1073741824"}}


@pytest.mark.parametrize(
    ("value", "word"), [(EnvironmentValue(inherit=True), "inherit"), (EnvironmentValue(file="/run/a"), "file")]
)
def test_pods_have_neither_files_nor_variables_of_the_controller(value: EnvironmentValue, word: str) -> None:
    problem = f"{word} is not possible with --launcher kubernetes: have the --pod-template take it from"
    (violation,) = container_violations(Backend(name="v1", env={"A": value, "B": EnvironmentValue(value="")}))
    assert violation.path == "backends.v1.env.A"
    assert violation.message.startswith(problem)
    with pytest.raises(LaunchFailed, match=f"backend Shop.v1_: env.A: {problem}"):
        container_of(ProcessSettings(env={"A": value}))
