"""Backends, endpoints and routes as they are configured: a table for people, and a file that `apply` takes."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, TextIO

from slotmesh.cli.output import Printable
from slotmesh.cli.subjects import BACKEND, ENDPOINT
from slotmesh.cli.view.report import console_of, new_table
from slotmesh.spec.model import Mesh
from slotmesh.spec.routes import route_subject
from slotmesh.spec.shown import shown_services
from slotmesh.spec.writing import mesh_document


def printable_mesh(mesh: Mesh) -> Printable:
    """Each backend, endpoint and route with the settings that are not the default."""
    return Printable(
        table=partial(_print, mesh), document=partial(mesh_document, mesh), names=partial(subjects_of, mesh)
    )


def subjects_of(mesh: Mesh) -> list[str]:
    """As `backend/NAME`."""
    return [
        *(f"{BACKEND}/{it.name}" for it in mesh.backends),
        *(f"{ENDPOINT}/{it.name}" for it in mesh.endpoints),
        *(route_subject(it.path) for it in mesh.routes),
    ]


def _print(mesh: Mesh, out: TextIO) -> None:
    document = mesh_document(mesh)
    for endpoint in mesh.endpoints:
        if endpoint.grpc_services is not None:
            document["endpoints"][endpoint.name]["grpc_services"] = shown_services(endpoint.grpc_services)
    table = new_table("Configuration", "subject", "settings")
    for kind, part in ((BACKEND, document["backends"]), (ENDPOINT, document["endpoints"])):
        for name, settings in part.items():
            table.add_row(f"{kind}/{name}", _lines(settings))
    for path, settings in document.get("routes", {}).items():
        table.add_row(route_subject(path), _lines(settings))
    console_of(out).print(table)


def _lines(settings: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {_value(value)}" for key, value in settings.items())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
