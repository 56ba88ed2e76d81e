"""Resources of cert-manager, the operator of Prometheus, the Gateway API and KEDA satisfy the schemas of these."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.kube.rig.control_plane import ControlPlane
from tests.support.mesh import ROOT

pytestmark = [pytest.mark.kube, pytest.mark.long, pytest.mark.timeout(300)]

SCHEMAS: Final = {
    "github.com/cert-manager/cert-manager@v1.19.1": (
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ),
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "github.com/kedacore/keda/v2@v2.21.0": ("config/crd/bases/keda.sh_scaledobjects.yaml",),
    "sigs.k8s.io/gateway-api@v1.4.0": (
        "config/crd/standard/gateway.networking.k8s.io_gateways.yaml",
        "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml",
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    ),
}
"""Files of Go modules, as their registry has them."""
PAGE: Final = ROOT / "docs/kubernetes.md"


def module_directory(module: str) -> Path:
    """The files of a published module; fetched once."""
    if (go := shutil.which("go")) is None:
        pytest.skip("NO GO: schemas of cert-manager, Prometheus and the Gateway API cannot be fetched")
    command = [go, "mod", "download", "-json", module]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, cwd="/")
    if done.returncode:
        pytest.skip(f"NO SCHEMAS: {module} cannot be fetched: {done.stdout[-300:]}")
    return Path(json.loads(done.stdout)["Dir"])


def test_resources_of_others_satisfy_their_schemas(control_plane: ControlPlane, tmp_path: Path) -> None:
    for module, paths in SCHEMAS.items():
        directory = module_directory(module)
        for path in paths:
            control_plane.kubectl("apply", "--server-side", "-f", str(directory / path))
    control_plane.kubectl("wait", "--for=condition=established", "crd", "--all", "--timeout=30s")
    control_plane.kubectl("apply", "-f", str(ROOT / "deploy/kubernetes/base/namespace.yaml"))
    shutil.copytree(ROOT / "deploy/kubernetes", tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes/overlays/own"
    overlay.mkdir()
    kustomization = {
        "namespace": "slotmesh",
        "resources": ["../production"],
        "components": ["../../components/gateway"],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    accepted = control_plane.kubectl(
        "apply", "-k", str(overlay), "--server-side", "--dry-run=server", "--validate=strict", "--output=name"
    )
    (scaled,) = re.findall(r"^```yaml\n([^`]*ScaledObject[^`]*)^```$", PAGE.read_text("utf-8"), re.MULTILINE)
    flags = ("--server-side", "--dry-run=server", "--validate=strict")
    assert "scaledobject" in control_plane.kubectl("apply", "-f", "-", *flags, stdin=scaled)
    for kind in ("certificate.cert-manager.io", "podmonitor.monitoring", "grpcroute.gateway", "httproute.gateway"):
        assert kind in accepted
