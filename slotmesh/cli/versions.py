"""Versions of backends as people read them: a given name, or a short digest of the code and when it was applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from slotmesh.cli.documents import local_time
from slotmesh.cli.operator import Operator
from slotmesh.spec.model import CODE
from slotmesh.v1 import controller_service_pb2 as pb

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
