"""`slotmesh describe`: a backend's settings, replicas and autoscaling decisions; or an endpoint and its shift."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, TextIO

import typer
from rich.table import Table
from rich.text import Text

from slotmesh.cli.commands.traffic import traffic
from slotmesh.cli.console import complete, console_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import BACKEND, CONTROLLER, ENDPOINT, ControllerAddress, name_of, unknown
from slotmesh.cli.snapshot import READY_STATE, BackendDescription, ScaleStatus
from slotmesh.cli.view.report import new_table, replica_json, replica_table
from slotmesh.cli.view.rollouts import rollout_as_json, rollout_lines
from slotmesh.errors import BackendNotFound
from slotmesh.spec.model import SETTINGS
from slotmesh.spec.setting import Setting, SettingKind
from slotmesh.units import format_duration, format_size


def print_described(it: BackendDescription, out: TextIO) -> None:
    """Writes the tables. Colours only where `out` is a terminal."""
    console = console_of(out)
    ready = sum(replica.state == READY_STATE for replica in it.replicas)
    wanted = "any" if it.wanted_replicas is None else it.wanted_replicas
    console.print(f"backend {it.backend.name}  revision {it.revision}  {ready}/{wanted} replicas ready")
    settings = new_table("Settings", "setting", "value")
    for name, value in _written(it.backend, SETTINGS, ""):
        settings.add_row(name, value)
    console.print(settings)
    console.print(replica_table(it.replicas, {it.backend.name}))
    for line in rollout_lines([it.rollout] if it.rollout is not None else []):
        console.print(Text(f"\n{line}", style="yellow"))
    if it.latest_decision is not None:
        console.print(_decisions(it.latest_decision, it.latest_change))


def as_json(it: BackendDescription) -> dict[str, Any]:
    """The same, as values of JSON. Times are ISO 8601 in UTC."""
    return {
        "name": it.backend.name,
        "revision": it.revision,
        "settings": dict(_written(it.backend, SETTINGS, "")),
        "wanted_replicas": it.wanted_replicas,
        "replicas": [replica_json(replica) for replica in it.replicas],
        "rollout": None if it.rollout is None else rollout_as_json(it.rollout),
        "latest_decision": _decision_json(it.latest_decision),
        "latest_change": _decision_json(it.latest_change),
    }


def _written(said: object, settings: Mapping[str, Setting], path: str) -> Iterator[tuple[str, str]]:
    """Settings that have a value, as `mesh.yaml` writes them; those of a section by their path."""
    for name, setting in settings.items():
        value = getattr(said, setting.attribute)
        if value is None or value in ("", {}):
            continue
        if setting.kind is SettingKind.SECTION:
            yield from _written(value, setting.settings, f"{path}{name}.")
        else:
            yield f"{path}{name}", _text(setting, value)


def _text(setting: Setting, value: Any) -> str:
    match setting.kind:
        case SettingKind.DURATION:
            return format_duration(timedelta(seconds=value))
        case SettingKind.SIZE:
            return format_size(value)
        case SettingKind.CHOICE:
            return str(value.name.lower())
        case SettingKind.JSON:
            return json.dumps(value, default=dict)
        case SettingKind.NUMBER:
            return f"{value:g}"
        case _:
            return str(value)


def _decisions(latest: ScaleStatus, change: ScaleStatus | None) -> Table:
    table = new_table(
        "Autoscaling", "", "time", "replicas", "why", "ready", "starting", "waiting", "running", "routers"
    )
    for title, it in (("latest look", latest), ("latest change", change)):
        if it is not None:
            table.add_row(
                title,
                "" if it.time is None else it.time.astimezone().strftime("%H:%M:%S"),
                str(it.to_replicas) if it.from_replicas == it.to_replicas else f"{it.from_replicas} → {it.to_replicas}",
                it.reason,
                str(it.ready),
                str(it.starting),
                str(it.queued),
                str(it.ongoing),
                _routers(it),
            )
    return table


def _routers(it: ScaleStatus) -> str:
    unheard = [f"{count} {what}" for count, what in ((it.late_routers, "late"), (it.silent_routers, "silent")) if count]
    return f"{it.routers} ({', '.join(unheard)})" if unheard else str(it.routers)


def _decision_json(it: ScaleStatus | None) -> dict[str, Any] | None:
    if it is None:
        return None
    return {
        "time": None if it.time is None else it.time.isoformat(),
        "from_replicas": it.from_replicas,
        "to_replicas": it.to_replicas,
        "reason": it.reason,
        "ready": it.ready,
        "starting": it.starting,
        "queued": it.queued,
        "ongoing": it.ongoing,
        "queue_time_s": it.queue_time_s,
        "routers": it.routers,
        "late_routers": it.late_routers,
        "silent_routers": it.silent_routers,
    }


def describe(
    name: Annotated[
        str,
        typer.Argument(metavar="BACKEND|endpoint/NAME", help="The backend or endpoint, as other commands print it."),
    ],
    as_document: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show a backend: its settings, its replicas, and where its load decides how many run, why; or an endpoint.

    Of decisions it shows the newest look at the load, and the newest that changed the number, each with its figures.
    """
    kind, slash, endpoint = name.partition("/")
    if slash and kind == ENDPOINT:
        traffic(endpoint, as_document=as_document, address=address)
        return
    described = complete(_ask(address, name_of(BACKEND)(name)))
    if as_document:
        typer.echo(json.dumps(as_json(described), indent=2))
    else:
        print_described(described, sys.stdout)


async def _ask(address: str, backend: str) -> BackendDescription:
    async with Operator.at(address) as operator:
        try:
            return await operator.describe_backend(backend)
        except BackendNotFound as error:
            mesh = await operator.configuration()
            known = [
                *(f"{BACKEND}/{it.name}" for it in mesh.backends),
                *(f"{ENDPOINT}/{it.name}" for it in mesh.endpoints),
            ]
            raise unknown(f"{BACKEND}/{backend}", known) from error
