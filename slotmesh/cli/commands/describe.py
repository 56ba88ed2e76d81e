"""`slotmesh describe`: a backend's settings, replicas and autoscaling decisions; or an endpoint and its shift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, TextIO

import typer
from rich.text import Text

from slotmesh.cli.commands.traffic import traffic
from slotmesh.cli.console import AsJson, Output, OutputForm, Printable, TableColumns, console_of, form_of, table_of
from slotmesh.cli.controller_view import READY_STATE
from slotmesh.cli.documents import local_time, message_document
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import BACKEND, CONTROLLER, ENDPOINT, ROUTE, ControllerAddress, name_of, unknown
from slotmesh.cli.view.changes import deferred_line, rollout_document, rollout_lines, subjects_of
from slotmesh.cli.view.replicas import device_table, replica_document, replica_table
from slotmesh.convert.specification import backend_from_wire
from slotmesh.errors import BackendNotFound
from slotmesh.spec.model import SETTINGS
from slotmesh.spec.setting import Setting, SettingKind
from slotmesh.spec.writing import shown_setting
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2, rollout_pb2


async def describe(
    name: Annotated[
        str,
        typer.Argument(metavar="BACKEND|endpoint/NAME", help="The backend or endpoint, as other commands print it."),
    ],
    as_document: AsJson = False,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show a backend: its settings, its replicas, and where its load decides how many run, why; or an endpoint.

    Of decisions it shows the newest look at the load, and the newest that changed the number, each with its figures.
    """
    kind, slash, endpoint = name.partition("/")
    if slash and kind == ENDPOINT:
        await traffic(endpoint, as_document=as_document, output=output, address=address)
        return
    form, backend = form_of(output, as_document), name_of(BACKEND, ENDPOINT)(name)
    async with Operator.at(address) as operator:
        try:
            described = await operator.send(pb.GetBackendRequest(name=backend))
        except BackendNotFound as error:
            known = [it for it in subjects_of(await operator.configuration()) if not it.startswith(f"{ROUTE}/")]
            raise unknown(f"{BACKEND}/{backend}", known) from error
        replicas, _ = await operator.pages(pb.ListReplicasRequest(backend=backend, whole_errors=True), "replicas")
    Printable(
        table=partial(print_backend, described, replicas),
        document=partial(backend_document, described, replicas),
        names=lambda: [f"{BACKEND}/{described.backend.name}"],
    ).write(form)


def backend_document(it: pb.GetBackendResponse, replicas: Sequence[mesh_pb2.Replica]) -> dict[str, Any]:
    """The backend as values of JSON: its status, and its settings as `mesh.yaml` writes them."""
    status = it.backend.status
    return {
        "name": it.backend.name,
        "revision": it.revision,
        **message_document(status),
        "settings": _settings(it.backend),
        "replicas": [*map(replica_document, replicas)],
        "rollout": rollout_document(status.rollout) if status.HasField("rollout") else None,
    }


def _replicas(it: rollout_pb2.ScaleDecision) -> str:
    is_change = it.from_replicas != it.to_replicas
    return f"{it.from_replicas} → {it.to_replicas}" if is_change else str(it.to_replicas)


def _routers(it: rollout_pb2.ScaleDecision) -> str:
    missing = [f"{count} {what}" for count, what in ((it.late_routers, "late"), (it.silent_routers, "silent")) if count]
    return f"{it.routers} ({', '.join(missing)})" if missing else str(it.routers)


_DECISIONS: Final[TableColumns[tuple[str, rollout_pb2.ScaleDecision]]] = {
    "": lambda row: row[0],
    "time": lambda row: local_time(row[1], "time", "%H:%M:%S"),
    "replicas": lambda row: _replicas(row[1]),
    "why": lambda row: row[1].reason,
    "ready": lambda row: str(row[1].ready),
    "starting": lambda row: str(row[1].starting),
    "waiting": lambda row: str(row[1].queued),
    "running": lambda row: str(row[1].ongoing),
    "routers": lambda row: _routers(row[1]),
}


def print_backend(it: pb.GetBackendResponse, replicas: Sequence[mesh_pb2.Replica], out: TextIO) -> None:
    """Writes the tables. Colours only where `out` is a terminal."""
    console, status = console_of(out), it.backend.status
    ready = sum(replica.state == READY_STATE for replica in replicas)
    wanted = status.wanted_replicas if status.HasField("wanted_replicas") else "any"
    console.print(f"backend {it.backend.name}  revision {it.revision}  {ready}/{wanted} replicas ready")
    settings: TableColumns[tuple[str, str]] = {"setting": lambda row: row[0], "value": lambda row: row[1]}
    console.print(table_of("Settings", settings, _settings(it.backend).items()))
    console.print(replica_table(replicas, {it.backend.name}))
    if status.device_pools:
        console.print(device_table(status.device_pools))
    if status.deferred_start:
        console.print(Text(f"\n{deferred_line(it.backend.name, status.deferred_start)}", style="yellow"))
    for line in rollout_lines([status.rollout] if status.HasField("rollout") else []):
        console.print(Text(f"\n{line}", style="yellow"))
    if status.HasField("latest_decision"):
        rows = [("latest look", status.latest_decision)]
        rows += [("latest change", status.latest_change)] if status.HasField("latest_change") else []
        console.print(table_of("Autoscaling", _DECISIONS, rows))


def _settings(backend: mesh_pb2.Backend) -> dict[str, str]:
    """Settings that have a value, as `mesh.yaml` writes them; those of a section by their path."""
    return dict(_written(backend_from_wire(backend)[0], SETTINGS, ""))


def _written(values: object, settings: Mapping[str, Setting], path: str) -> Iterator[tuple[str, str]]:
    for name, setting in settings.items():
        value = getattr(values, setting.attribute)
        if value is None or value in ("", {}):
            continue
        if setting.kind is SettingKind.SECTION:
            yield from _written(value, setting.settings, f"{path}{name}.")
        else:
            is_number = setting.kind is SettingKind.NUMBER
            yield f"{path}{name}", f"{value:g}" if is_number else shown_setting(setting, value)
