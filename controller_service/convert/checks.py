"""Checks of members' messages and of requests: each refusal names its field.

An `InvalidSpec` becomes INVALID_ARGUMENT, with BadRequest details that name each problem.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote

import grpc
from google.protobuf import timestamp_pb2
from google.protobuf.message import Message

from slotmesh.convert.request_paths import request_path
from slotmesh.errors import BackendNotFound, EndpointNotFound, Failure, Reason, RouteNotFound, at_field
from slotmesh.internal.v1.membership_service_pb2 import ReplicaHello, ReplicaRoute
from slotmesh.names import did_you_mean, is_zone
from slotmesh.spec.model import InvalidSpec, SpecViolation
from slotmesh.spec.rules import show
from slotmesh.status import FIELDS_TEXT_BYTES, abort, to_exception
from slotmesh.units import parse_host_port
from slotmesh.version import VERSION

_END_OF_TIMES: Final = 253_402_300_800
"""Seconds from 1970 to the year 10000, from where on a Timestamp is not valid."""


def timestamp(wall_s: float) -> timestamp_pb2.Timestamp:
    wire = timestamp_pb2.Timestamp()
    wire.FromMicroseconds(round(wall_s * 1e6))
    return wire


def seconds_of(wire: timestamp_pb2.Timestamp) -> float | None:
    """Seconds since 1970; None if the timestamp is empty or not valid."""
    return wire.ToMicroseconds() / 1e6 if 0 < wire.seconds < _END_OF_TIMES else None


ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
INCARNATION: Final = re.compile(r"[0-9a-f]{32}")
_MAX_GENERATION_CHARS: Final = 64
MAX_PROCESS_CHARS: Final = 256
MAX_POD_UID_CHARS: Final = 64
MAX_VERSION_CHARS: Final = 64
MAX_TERM_ID_CHARS: Final = 64
MAX_END_REASON_CHARS: Final = 300
MAX_EPOCH: Final = 2**62
MAX_RANK: Final = 2**20


def require(pattern: re.Pattern[str], field: str, value: str, expected: str) -> None:
    if not pattern.fullmatch(value):
        refuse(field, f"must be {expected}, is {show(value)!r}")


def require_generation(field: str, value: str) -> None:
    if not 0 < len(value) <= _MAX_GENERATION_CHARS:
        refuse(field, f"must be 1 to {_MAX_GENERATION_CHARS} characters, is {show(value)!r}")


def require_address(field: str, value: str) -> None:
    try:
        parse_host_port(value)
    except ValueError as error:
        refuse(field, str(error))


def rank_from_wire(field: str, wire: ReplicaHello | ReplicaRoute) -> int | None:
    """The rank of a replica; None if the message has none."""
    if wire.HasField("rank") and not 0 <= wire.rank < MAX_RANK:
        refuse(field, f"must be 0 to {MAX_RANK - 1}, is {wire.rank}")
    return wire.rank if wire.HasField("rank") else None


def zone_from_wire(zone: str) -> str:
    """The zone of a member; empty if it is none."""
    return zone if is_zone(zone) else ""


def end_reason_from_wire(text: str) -> str:
    """Why a member ends, in a line; what is longer is cut."""
    return " ".join(text[:MAX_END_REASON_CHARS].split())


def refuse_frame(kind: str | None, *, known: dict[str, str]) -> NoReturn:
    if kind is not None and kind in known:
        refuse(kind, known[kind])
    text = f"frame {kind or 'without a known kind'} is not implemented by slotmesh {VERSION}"
    raise to_exception(at_field(Failure(reason=Reason.NOT_IMPLEMENTED, message=text), kind or ""))


def refuse(field: str, message: str) -> NoReturn:
    raise to_exception(Failure(reason=Reason.BAD_REQUEST, message=f"{field}: {message}", metadata={"field": field}))


Context = grpc.aio.ServicerContext[Any, Any]
ServicerT = TypeVar("ServicerT")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT")

_DOCUMENT: Final = "mesh"
"""The field of a request that has what a mesh.yaml has."""
_MOST_NAMED: Final = 20
"""Replicas and backends that an error names, at most."""
_LAST_LINE_BYTES: Final = 64
"""Room for the line with the number of violations that were left out."""


def names_all_violations(
    rpc: Callable[[ServicerT, RequestT, Context], Awaitable[ResponseT]],
) -> Callable[[ServicerT, RequestT, Context], Awaitable[ResponseT]]:
    """An rpc whose InvalidSpec becomes INVALID_ARGUMENT with a field violation for each violation.

    The details have the fields of the request, and so has the message, unless the request is a whole document: then it
    has the places in that. A resource that is not found is named by its field, too.
    """

    @functools.wraps(rpc)
    async def checking(self: ServicerT, request: RequestT, context: Context) -> ResponseT:
        try:
            return await rpc(self, request, context)
        except InvalidSpec as invalid:
            shown = _those_that_fit(invalid.violations)
            fields = [(request_path(request, violation.path), violation.message) for violation in shown]
            lines = [str(violation) for violation in shown]
            if _DOCUMENT not in request.DESCRIPTOR.fields_by_name:
                lines = [
                    f"{field}: {text}" if field else line for line, (field, text) in zip(lines, fields, strict=True)
                ]
            if omitted := len(invalid.violations) - len(shown):
                lines.append(f"and {omitted} more violations")
            failure = Failure(reason=Reason.BAD_REQUEST, message="\n".join(lines))
            await abort(context, failure, [(field, text) for field, text in fields if field])
        except (BackendNotFound, EndpointNotFound, RouteNotFound) as missing:
            for kind, name in [*missing.metadata.items()]:
                if field := request_path(request, f"{kind}s.{name}.name"):
                    missing.metadata = {**missing.metadata, "field": field}
            raise

    return checking


def _those_that_fit(violations: Sequence[SpecViolation]) -> list[SpecViolation]:
    """The first violations: their texts take `FIELDS_TEXT_BYTES` at most, percent-encoded."""
    shown: list[SpecViolation] = []
    left = FIELDS_TEXT_BYTES - _LAST_LINE_BYTES
    for violation in violations:
        left -= len(quote(f"{violation}\n", safe=" "))
        if left < 0:
            break
        shown.append(violation)
    return shown


def logs_not_found(name: str, known: Sequence[str] | None, *, of_backend: bool) -> Failure:
    """No output is known of a replica or backend of that name. `known` has those that there are.

    None: this controller starts no replicas.
    """
    if known is None:
        way_out = "; this controller starts none: look where they are started"
    else:
        those = ", ".join([*known[:_MOST_NAMED], *["…"][: len(known) > _MOST_NAMED]])
        way_out = did_you_mean(name, known) or (f"; there is that of {those}" if known else "; there is none yet")
    kind, reason = ("backend", Reason.BACKEND_NOT_FOUND) if of_backend else ("replica", Reason.REPLICA_NOT_FOUND)
    field = "backend" if of_backend else "replica_id"
    text = f"no output is known of a {kind} {show(name)!r}{way_out}"
    return Failure(reason=reason, message=text, metadata={"field": field})
