"""Persistent volumes: each claim of a namespace is bound to a directory, which outlives pods and nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.kube.rig.api import Api, ApiRefused, Document


@asynccontextmanager
async def provisioned_claims(api: Api, namespace: str, directory: Path) -> AsyncIterator[None]:
    """Makes a volume for each claim of the namespace, as long as the block lasts."""
    made: set[str] = set()
    task = asyncio.ensure_future(_provision(api, namespace, directory, made))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        for name in made:
            with suppress(ApiRefused):
                await api.delete(f"/api/v1/persistentvolumes/{name}")


async def _provision(api: Api, namespace: str, directory: Path, made: set[str]) -> None:
    async for _, item in api.observe(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"):
        for claim in item.get("items", [item]):
            name = f"{namespace}-{claim['metadata']['name']}"
            if name not in made and "volumeName" not in claim["spec"]:
                made.add(name)
                (directory / name).mkdir(parents=True, exist_ok=True)
                await api.create("/api/v1/persistentvolumes", _volume(name, claim, directory / name))


def _volume(name: str, claim: Document, path: Path) -> Document:
    metadata, spec = claim["metadata"], claim["spec"]
    reference = {"kind": "PersistentVolumeClaim", "namespace": metadata["namespace"], "name": metadata["name"]}
    return {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": spec.get("storageClassName", ""),
            "claimRef": {**reference, "uid": metadata["uid"]},
            "hostPath": {"path": str(path)},
        },
    }
