"""How commands show a configuration, and a change of it: what it did, its effects, and rollouts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TextIO, TypeAlias

from slotmesh.cli.console import OutputForm, Printable, console_of, say, table_of
from slotmesh.cli.documents import local_time, message_document, word_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import BACKEND, ENDPOINT
from slotmesh.spec.model import CODE, Mesh
from slotmesh.spec.routes import route_subject
from slotmesh.spec.writing import mesh_document, shown_services
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import rollout_pb2

_DIGEST_CHARS: Final = 8
MOST_REVISIONS: Final = 200
"""As many as a controller keeps."""
VersionTimes: TypeAlias = Mapping[str, str]
"""The local time at which a version that is named after its code was applied first, unless that is not known."""
NO_TIMES: Final[VersionTimes] = MappingProxyType({})


def version_times(revisions: Iterable[pb.ConfigurationRevision]) -> VersionTimes:
    """`revisions`: newest first, all that are kept. A version that is replaced before one applies it is older."""
    times: dict[str, str] = {}
    for revision in revisions:
        for change in revision.changes:
            if change.version.startswith(CODE) and revision.HasField("time"):
                times[change.version] = local_time(revision, "time")
        for change in revision.changes:
            times.pop(change.previous_version, None)  # it was applied in an earlier revision
    return times


def shown_version(version: str, times: VersionTimes = NO_TIMES) -> str:
    """A version that an operator has given stays as it is."""
    if not version.startswith(CODE):
        return version
    short = version.removeprefix(CODE)[:_DIGEST_CHARS]
    return f"{short} (of {times[version]})" if version in times else short


async def times_for(operator: Operator, applied: pb.ApplyMeshResponse) -> VersionTimes:
    """The times of the versions that a change names, if any is named after its code."""
    if not any(it.field == "version" and CODE in it.before + it.after for it in applied.fields):
        return NO_TIMES
    return version_times(await operator.revisions(MOST_REVISIONS))


_VERBS: Final = ("created", "updated", "unchanged", "deleted")


def printable_change(applied: pb.ApplyMeshResponse, *, is_planned: bool = False) -> Printable:
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


def print_change(applied: pb.ApplyMeshResponse, output: OutputForm, *, is_planned: bool = False) -> None:
    """Prints the change, and its effects to stderr."""
    printable_change(applied, is_planned=is_planned).write(output)
    for line in consequences(applied, is_planned=is_planned):
        say(f"slotmesh: {line}", err=True)


def as_applied(undone: pb.RollbackResponse) -> pb.ApplyMeshResponse:
    """A rollback as the change that it is."""
    names = pb.ApplyMeshResponse.DESCRIPTOR.fields_by_name
    return pb.ApplyMeshResponse(**{field.name: value for field, value in undone.ListFields() if field.name in names})


def difference(planned: pb.ApplyMeshResponse, times: VersionTimes = NO_TIMES) -> Iterator[str]:
    """The lines of a diff: created, updated and deleted objects, with the fields that differ."""
    for sign, names in (("+", planned.created), ("~", planned.updated), ("-", planned.deleted)):
        for name in names:
            yield f"{sign} {name}"
            for it in planned.fields:
                before, after = (shown_version(text, times) for text in (it.before, it.after))
                if it.resource == name and sign == "~":
                    yield f"    {it.field}: {before} -> {after}"
                elif it.resource == name and sign == "+":
                    yield f"    {it.field}: {after}"


def code_changes(planned: pb.ApplyMeshResponse) -> list[str]:
    """The backends whose version, named after their code, is another one after the change."""
    changed = {*planned.created, *planned.updated}
    codes = (it for it in planned.fields if it.field == "version" and it.after.startswith(CODE))
    return sorted({it.resource for it in codes if it.resource in changed})


def consequences(applied: pb.ApplyMeshResponse, *, is_planned: bool = False) -> Iterator[str]:
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


def code_lines(applied: pb.ApplyMeshResponse) -> Iterator[str]:
    """The code that a change brings: its folder, and the files that differ, a line for each."""
    for it in applied.code:
        files = f"{it.files:,} {'file' if it.files == 1 else 'files'}, {it.size_bytes:,} bytes"
        line = f"code of {', '.join(it.backends)}: {files}, of {it.folder}"
        for what, paths in (("changed", it.changed), ("new", it.added), ("removed", it.removed)):
            if paths:
                line += f"; {what}: {', '.join(paths)}"
        yield line + (f"; and {it.unlisted_files} more" if it.unlisted_files else "")


def conflicts(planned: pb.ApplyMeshResponse) -> Iterator[str]:
    """The lines for fields that both the file and another client have changed."""
    for it in planned.conflicts:
        yield f"! {it.resource}"
        yield f"    {it.field}: {it.live} is in force, set by another client"
        yield f"    {' ' * len(it.field)}  {it.wanted} is in the file, which had {it.applied} when it was applied last"


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
    settings = [*document["backends"].values(), *document["endpoints"].values(), *document.get("routes", {}).values()]
    rows = [*zip(subjects_of(mesh), settings, strict=True)]
    columns = {"subject": lambda row: row[0], "settings": lambda row: _lines(row[1])}
    console_of(out).print(table_of("Configuration", columns, rows))


def _lines(settings: dict[str, Any]) -> str:
    shown = {key: it if isinstance(it, str) else json.dumps(it, ensure_ascii=False) for key, it in settings.items()}
    return "\n".join(f"{key}: {value}" for key, value in shown.items())


def rollout_lines(rollouts: Iterable[rollout_pb2.Rollout]) -> Iterator[str]:
    """A line for each rollout that is not simply complete."""
    for rollout in rollouts:
        if rollout.phase != rollout_pb2.ROLLOUT_PHASE_COMPLETE or rollout.rollback_reason or rollout.paused:
            yield rollout_line(rollout)


def rollout_line(rollout: rollout_pb2.Rollout) -> str:
    """The progress and the problem of a rollout."""
    what = f"{rollout.handler} {rollout.version}".strip()
    line = f"rollout of {rollout.backend} to {what}: {word_of(rollout, 'phase').lower().replace('_', ' ')},"
    is_complete = rollout.phase == rollout_pb2.ROLLOUT_PHASE_COMPLETE
    line += f" {rollout.available} of {rollout.wanted} {'' if is_complete else 'new '}replicas ready"
    line += "".join(f", {what}" for what in _waits_for(rollout, is_complete=is_complete))
    if rollout.problem:
        line += f"; {rollout.problem}"
    if rollout.rollback_reason:
        line += f"; the one before was rolled back{local_time(rollout, 'rollback_time', ' at %H:%M:%S')}:"
        line += f" {rollout.rollback_reason}"
    if rollout.paused:
        held = "paused: the next change" if is_complete else "it"
        line += f"; {held} waits for {resume_command(rollout.backend)}"
    return line


def _waits_for(rollout: rollout_pb2.Rollout, *, is_complete: bool) -> Iterator[str]:
    """What keeps the rollout from being complete, as far as the controller reports it; after that, what still ends."""
    if not is_complete:
        if (young := rollout.ready - rollout.available) > 0:
            yield f"{young} ready for less than min_ready"
        if rollout.ready >= rollout.available and (starting := rollout.current - rollout.ready) > 0:
            yield f"{starting} not ready yet"
        if (missing := rollout.wanted - rollout.current) > 0:
            yield f"{missing} not started yet"
    if rollout.outdated:
        yield f"{rollout.outdated} {'earlier end' if is_complete else 'old left'}"


def deferred_line(backend: str, why: str) -> str:
    """Why missing replicas are not being started."""
    return f"missing replicas of {backend} cannot be started now, and it is tried again: {why}"


def resume_command(backend: str) -> str:
    """What ends the pause of a backend's rollouts."""
    return f"`slotmesh rollout resume {backend}`"


def rollout_document(rollout: rollout_pb2.Rollout) -> dict[str, Any]:
    """The rollout as values of JSON."""
    return {**message_document(rollout), "paused": rollout.paused}
