"""deploy/kubernetes as kustomize writes it, without a cluster: settings, probes, times, names and certificates fit.

`tests/kube/` applies the same files to a real API server.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from controller_service.config import ControllerSettings
from ingress_service.config import IngressSettings
from replica_service.config import ReplicaSettings
from router_service.config import RouterSettings
from slotmesh.config import ServiceSettings
from slotmesh.security.identity import identity_of, server_names_of
from slotmesh.spec.document import load_mesh
from tests.support.mesh import ROOT
from tools.kubetest.build import folder, is_built

KUBERNETES: Final = ROOT / "deploy/kubernetes"
COMPONENTS: Final = sorted(path.parent.name for path in (KUBERNETES / "components").glob("*/kustomization.yaml"))
SETTINGS: Final[Mapping[str, type[ServiceSettings]]] = {
    "controller_service": ControllerSettings,
    "router_service": RouterSettings,
    "replica_service": ReplicaSettings,
    "ingress_service": IngressSettings,
}
DOMAIN: Final = "slotmesh.local"
KUBECTL: Final = str(folder() / "kubectl") if is_built() else shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="NO KUBECTL: `make kubetest-tools` builds it")

Document = dict[str, Any]


@functools.cache
def rendered(directory: Path) -> tuple[Document, ...]:
    """What `kubectl apply -k` would send."""
    command = [str(KUBECTL), "kustomize", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


BASE: Final = KUBERNETES / "base"
DEV: Final = KUBERNETES / "overlays/dev"
PRODUCTION: Final = KUBERNETES / "overlays/production"
ALL: Final = (BASE, DEV, PRODUCTION)


def of_kind(directory: Path, *kinds: str) -> list[Document]:
    return [it for it in rendered(directory) if it["kind"] in kinds]


def workloads(directory: Path) -> Iterator[tuple[str, Document, Document]]:
    """Yields the name, the pod and the container of each."""
    for it in of_kind(directory, "Deployment", "StatefulSet"):
        pod = it["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield it["metadata"]["name"], pod, container


def servers(directory: Path) -> Iterator[tuple[str, Document, Document, ServiceSettings]]:
    """Yields each workload of a service, with the settings that its process reads."""
    for name, pod, container in workloads(directory):
        if "args" in container:
            fields = {"metadata.name": f"{name}-0", "metadata.uid": "6f0c", "status.podIP": "fd00::7"}
            env = {
                it["name"]: it["value"] if "value" in it else fields[it["valueFrom"]["fieldRef"]["fieldPath"]]
                for it in container["env"]
            }
            service, *flags = [it.replace("$(POD_NAME)", env["POD_NAME"]) for it in container["args"]]
            yield name, pod, container, SETTINGS[service].parse(flags, env, prog=service)


@pytest.mark.parametrize("directory", ALL, ids=lambda it: it.name)
def test_each_process_reads_its_settings_and_announces_the_address_of_its_pod(directory: Path) -> None:
    found = {name: settings for name, _, _, settings in servers(directory)}
    assert set(found) == {"controller", "router", "ingress", "digits-v1"}
    for settings in found.values():
        assert settings.metrics_port == 9464
        if isinstance(settings, RouterSettings | ReplicaSettings | ControllerSettings):
            assert settings.advertised(f"0.0.0.0:{settings.port}") == f"[fd00::7]:{settings.port}"


@pytest.mark.parametrize("directory", ALL, ids=lambda it: it.name)
def test_ports_and_probes_are_those_of_the_process(directory: Path) -> None:
    scheme = "HTTPS" if directory == PRODUCTION else "HTTP"
    for name, _, container, settings in servers(directory):
        ports = {it["name"]: it["containerPort"] for it in container["ports"]}
        assert ports.pop("metrics") == settings.metrics_port, name
        assert list(ports.values()) == [settings.port], name
        for probe, path in (("readinessProbe", "/readyz?standbyok"), ("livenessProbe", "/healthz")):
            get = {"scheme": "HTTP", **container[probe]["httpGet"]}
            assert get == {"scheme": scheme, "path": path, "port": "metrics"}, name


@pytest.mark.parametrize("directory", ALL, ids=lambda it: it.name)
def test_the_grace_of_a_pod_is_longer_than_what_its_end_may_take(directory: Path) -> None:
    own = timedelta(seconds=5)
    for name, pod, container, settings in servers(directory):
        waits = timedelta(seconds=container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0))
        drains = getattr(settings, "graceful_timeout", timedelta(0))
        assert timedelta(seconds=pod["terminationGracePeriodSeconds"]) >= waits + drains + own, name
        # Clients find these by a virtual address, by which nodes connect to a pod for a while after its end began.
        assert (waits >= own) is (name in ("router", "ingress")), name


@pytest.mark.parametrize("directory", ALL, ids=lambda it: it.name)
def test_pods_have_no_more_rights_than_they_need(directory: Path) -> None:
    for name, pod, container in workloads(directory):
        assert pod["automountServiceAccountToken"] is (name == "controller"), name
        assert pod["enableServiceLinks"] is False, name
        assert pod["securityContext"]["runAsNonRoot"], name
        assert container["securityContext"]["readOnlyRootFilesystem"], name
        assert container["resources"]["limits"]["memory"], name
        volumes = {it["name"] for it in pod.get("volumes", ())} | {"state"}
        assert {it["name"] for it in container["volumeMounts"]} <= volumes, name


@pytest.mark.parametrize("directory", ALL, ids=lambda it: it.name)
def test_addresses_in_settings_are_services_that_select_such_pods(directory: Path) -> None:
    services = {it["metadata"]["name"]: it["spec"] for it in of_kind(directory, "Service")}
    templates = {
        it["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: it
        for it in of_kind(directory, "Deployment", "StatefulSet")
    }
    for _, _, _, settings in servers(directory):
        for setting, component in (("controller", "controller"), ("routers", "router")):
            if address := getattr(settings, setting, None):
                name, port = re.sub("^dns:///", "", address).split(":")
                assert services[name]["ports"][0]["port"] == int(port)
                assert services[name]["selector"] == {"app.kubernetes.io/component": component}
                assert templates[component]
    for it in of_kind(directory, "StatefulSet"):
        assert services[it["spec"]["serviceName"]]["clusterIP"] == "None"


def test_each_backend_of_the_mesh_has_a_deployment() -> None:
    mesh = load_mesh(BASE / "mesh.yaml")
    replicas = [settings for _, _, _, settings in servers(BASE) if isinstance(settings, ReplicaSettings)]
    assert [(it.backend, it.handler) for it in replicas] == [(it.name, it.handler) for it in mesh.backends]


@pytest.mark.parametrize("directory", ALL, ids=lambda it: it.name)
def test_what_the_controller_needs_is_applied_with_it(directory: Path) -> None:
    """`kubectl apply -l app.kubernetes.io/component=controller` brings the rights that a newer controller needs."""
    for it in of_kind(directory, "ServiceAccount", "Role", "RoleBinding", "ConfigMap"):
        assert it["metadata"]["labels"]["app.kubernetes.io/component"] == "controller", it["kind"]


def test_a_backend_with_an_image_of_its_own_keeps_it(tmp_path: Path) -> None:
    """A canary, as docs/kubernetes.md has it. `images` of the overlay is for the others."""
    copy = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    overlay = copy / "overlays/own"
    overlay.mkdir()
    canary = (copy / "base/replica.yaml").read_text("utf-8").replace("digits-v1", "digits-v2")
    canary = canary.replace("image: slotmesh:0.2.0", "image: registry.example.com/slotmesh:0.2.1")
    (overlay / "digits-v2.yaml").write_text(canary)
    kustomization = {
        "namespace": "slotmesh",
        "resources": ["../../base", "digits-v2.yaml"],
        "components": ["../../components/every-pod", "../../components/tls"],
        "images": [{"name": "slotmesh", "newName": "registry.example.com/slotmesh", "newTag": "0.2.0"}],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    images = {name: container["image"] for name, _, container in workloads(overlay)}
    assert images.pop("digits-v2") == "registry.example.com/slotmesh:0.2.1"
    assert set(images.values()) == {"registry.example.com/slotmesh:0.2.0"}


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_can_be_added_alone(component: str, tmp_path: Path) -> None:
    """Kustomize takes relative paths only, so that it is added in a copy."""
    copy = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    overlay = copy / "overlays/own"
    overlay.mkdir()
    needs = {"observability-tls": ["observability"]}.get(component, [])
    components = [f"../../components/{it}" for it in [*needs, component]]
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["../../base"], "components": components}))
    assert len(rendered(overlay)) >= len(rendered(BASE))


def test_the_rule_of_prometheus_has_the_alerts() -> None:
    (rule,) = of_kind(PRODUCTION, "PrometheusRule")
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text("utf-8"))
    assert rule["spec"] == alerts, "`make format` writes it"


def test_each_part_is_scraped_as_the_job_that_the_alerts_expect() -> None:
    monitors = of_kind(PRODUCTION, "PodMonitor")
    jobs = set()
    for it in monitors:
        (endpoint,) = it["spec"]["podMetricsEndpoints"]
        component = it["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        jobs.add(endpoint["relabelings"][0]["replacement"])
        assert endpoint["tlsConfig"]["serverName"] in server_names_of(f"spiffe://{DOMAIN}/{component}")
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text("utf-8"))["scrape_configs"]
    assert jobs == {it["job_name"] for it in scraped}


def test_certificates_have_the_names_of_their_identities() -> None:
    for it in of_kind(PRODUCTION, "Certificate"):
        spec = it["spec"]
        for uri in spec.get("uris", ()):
            assert identity_of(uri, DOMAIN) is not None, uri
            names = server_names_of(uri)
            assert set(spec.get("dnsNames", ())) == set(names), uri
            assert ("server auth" in spec["usages"]) is bool(names), uri
            assert "client auth" in spec["usages"]


def test_each_secret_that_a_pod_mounts_is_issued() -> None:
    issued = {it["spec"]["secretName"] for it in of_kind(PRODUCTION, "Certificate")}
    for name, pod, _ in workloads(PRODUCTION):
        for it in pod["volumes"]:
            if (secret := it.get("secret")) and secret["secretName"] != "tokens":
                assert secret["secretName"] in issued, name
                assert secret["defaultMode"] == 0o440, "others may read the key, and the process refuses it"


def test_replicas_have_the_certificate_of_their_backend() -> None:
    of_secret = {it["spec"]["secretName"]: it["spec"].get("uris") for it in of_kind(PRODUCTION, "Certificate")}
    for _, pod, _, settings in servers(PRODUCTION):
        if isinstance(settings, ReplicaSettings):
            (secret,) = [it["secret"]["secretName"] for it in pod["volumes"] if it["name"] == "tls"]
            assert of_secret[secret] == [f"spiffe://{DOMAIN}/replica/{settings.backend}"]
