"""Backends, endpoints and routes: as a table, as a file for `slotmesh apply`, and the differences made by a change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, TextIO

from slotmesh.cli.applied import Applied
from slotmesh.cli.console import Printable, console_of
from slotmesh.cli.parameters import BACKEND, ENDPOINT
from slotmesh.cli.view.report import new_table
from slotmesh.spec.model import Mesh
from slotmesh.spec.routes import route_subject
from slotmesh.spec.writing import mesh_document, shown_services

_VERBS: Final = ("created", "updated", "unchanged", "deleted")


def printable_change(applied: Applied, *, is_planned: bool = False) -> Printable:
    """`created   backend/v1` and so on, then the revision; of a dry run `would be created  backend/v1`."""

    def table(out: TextIO) -> None:
        width = 17 if is_planned else 9
        for verb in _VERBS:
            shown = f"would be {verb}" if is_planned and verb != "unchanged" else verb
            out.writelines(f"{shown:<{width}} {name}\n" for name in getattr(applied, verb))
        note = ", nothing was changed" if is_planned else ""
        out.write(f"{'revision':<{width}} {applied.revision}{note}\n")

    return Printable(
        table=table,
        document=lambda: {"revision": applied.revision, **{verb: list(getattr(applied, verb)) for verb in _VERBS}},
        names=lambda: (name for verb in _VERBS for name in getattr(applied, verb)),
    )


def difference(planned: Applied) -> Iterator[str]:
    """The lines of a diff: created, updated and deleted objects, with the fields that differ."""
    for sign, names in (("+", planned.created), ("~", planned.updated), ("-", planned.deleted)):
        for name in names:
            yield f"{sign} {name}"
            for it in planned.fields:
                if it.subject == name and sign == "~":
                    yield f"    {it.field}: {it.before} -> {it.after}"
                elif it.subject == name and sign == "+":
                    yield f"    {it.field}: {it.after}"


def consequences(applied: Applied, *, is_planned: bool = False) -> Iterator[str]:
    """The effects of a change: replicas that are replaced, traffic that waits for them; and warnings."""
    if applied.rolling:
        are = "would be" if is_planned else "are"
        yield f"replicas of {', '.join(applied.rolling)} {are} started or replaced"
    for it in applied.waits:
        line = f"traffic of {it.endpoint} stays as it is until the rollout of {', '.join(it.backends)} is complete"
        if it.deleted_afterwards:
            line += f"; {', '.join(it.deleted_afterwards)} is deleted after that"
        yield line
    for warning in applied.warnings:
        yield f"warning: {warning}"


def conflicts(planned: Applied) -> Iterator[str]:
    """The lines for fields that both the file and another client have changed."""
    for it in planned.conflicts:
        yield f"! {it.subject}"
        yield f"    {it.field}: {it.live} is there, since somebody changed it"
        yield f"    {' ' * len(it.field)}  {it.wanted} is in the file, which said {it.applied} when it was applied last"


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
