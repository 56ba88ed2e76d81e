"""Documents of Kubernetes for tests."""

from __future__ import annotations

from typing import Any

from tests.kube.rig.api import Document


def container(program: str, **more: Any) -> Document:
    """A container that runs a Python program, without a mesh."""
    return {"name": "main", "image": "test", "command": ["python", "-c", program], **more}


def pod(name: str, *containers: Document, **spec: Any) -> Document:
    spec = {"terminationGracePeriodSeconds": 5, "containers": [*containers], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def deployment(name: str, replicas: int, *containers: Document, **spec: Any) -> Document:
    labels = {"app": name}
    spec = {"terminationGracePeriodSeconds": 5, "containers": [*containers], **spec}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def service(name: str, port: int, **spec: Any) -> Document:
    """Headless, unless `spec` says otherwise."""
    spec = {"clusterIP": "None", "selector": {"app": name}, "ports": [{"port": port}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
