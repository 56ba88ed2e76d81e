"""Reasons, gRPC statuses and exceptions, converted to each other.

Purpose: domain `Failure` <-> `slotmesh.v1.Failure` in frames <-> `google.rpc.Status` details on rpcs <-> exceptions.
Invariants: no other module names a `grpc.StatusCode`; every failure on the wire states whether the call was executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from slotmesh.errors import ERROR_OF, Executed, Failure, Reason, SlotmeshError, at_field
from slotmesh.v1 import call_pb2

DOMAIN = "slotmesh.dev"
"""Domain of every ErrorInfo: reasons are unique within it."""

MAX_TRAILER_BYTES = 7_680
"""Of a refusal's trailing metadata, as HTTP/2 counts it. Clients with gRPC's default options reject more than 8 KiB at
random, and put an error of their own in place of ours, without `executed`."""
FIELDS_TEXT_BYTES = 1_792
"""What the texts of violations may take in all: they travel three times, once percent-encoded and twice in base64."""
_TEXT_BYTES = (3_072, 2_304, FIELDS_TEXT_BYTES, 1_280, 896, 512, 256, 128, 64)
"""What a failure's message may take, percent-encoded: the first with which the whole fits."""
MAX_FACT_BYTES = 256
"""Each value of its metadata, at most."""
MAX_FACTS = 32
_DETAILS = "grpc-status-details-bin"
"""The key of rich details in trailing metadata."""
_PLAIN_TRAILER_BYTES = sum(
    32 + len(text) for text in (":status200", "content-typeapplication/grpc", "grpc-status16", "grpc-message", _DETAILS)
)

_Code = grpc.StatusCode

STATUS_OF: Mapping[Reason, grpc.StatusCode] = MappingProxyType(
    {reason: _Code.__members__[error.usual_status] for reason, error in ERROR_OF.items()}
)
"""gRPC status of each reason. A handler's own choice (`Failure.code`) goes before it."""

_NUMBER: Mapping[grpc.StatusCode, int] = {code: code.value[0] for code in _Code}
_EXECUTED_NUMBERS = frozenset(each.value for each in Executed)
_CODE: Mapping[int, grpc.StatusCode] = {number: code for code, number in _NUMBER.items()}

STATUS_NUMBERS: Mapping[str, int] = MappingProxyType(
    {code.name: number for code, number in _NUMBER.items() if code is not _Code.OK}
)
"""The statuses that a handler may choose, by name."""


def code_of(failure: Failure) -> int:
    """The gRPC status number of a failure."""
    return failure.code if failure.code is not None else _NUMBER[STATUS_OF[failure.reason]]


def name_of(code: int) -> str:
    """The name of a gRPC status number, as `UNAVAILABLE`; `UNKNOWN` where there is none."""
    return _CODE.get(code, _Code.UNKNOWN).name


# -- frames ------------------------------------------------------------------------------------------------------


def to_wire(failure: Failure) -> call_pb2.Failure:
    """The failure as it travels in a frame."""
    wire = call_pb2.Failure(
        code=code_of(failure),
        message=failure.message,
        reason=failure.reason.value,
        executed=failure.executed.value,  # type: ignore[arg-type]  # the enums share their numbers
        metadata=failure.metadata,
    )
    if failure.retry_delay_s is not None:
        wire.retry_delay.CopyFrom(_duration(failure.retry_delay_s))
    return wire


def from_wire(wire: call_pb2.Failure) -> Failure:
    """The failure that a frame carries. A reason that is not known here becomes INTERNAL and keeps its status."""
    try:
        reason = Reason(wire.reason)
    except ValueError:
        reason = Reason.INTERNAL
    return Failure(
        reason=reason,
        message=wire.message,
        executed=_executed(wire.executed),
        retry_delay_s=_seconds(wire.retry_delay) if wire.HasField("retry_delay") else None,
        code=wire.code or None,
        metadata=dict(wire.metadata),
    )


# -- rpcs --------------------------------------------------------------------------------------------------------


def to_status(
    failure: Failure, violations: Sequence[tuple[str, str]] = (), *, room: int = MAX_TRAILER_BYTES
) -> status_pb2.Status:
    """The failure as the rich status of an rpc: ErrorInfo, and RetryInfo or BadRequest where they fit.

    `violations` are fields and what is wrong with each, where one message about one field does not say it all. `room`:
    bytes of trailing metadata that it may take; texts are clipped until it does.
    """
    for limit in _TEXT_BYTES:
        status = _status(failure, violations, limit)
        if _trailer_bytes(status) <= room:
            return status
    return _status(failure, violations, _TEXT_BYTES[-1])


def _status(failure: Failure, violations: Sequence[tuple[str, str]], limit: int) -> status_pb2.Status:
    """Its texts take `limit` bytes at most, percent-encoded."""
    message = _clipped(failure.message, limit)
    known = list(failure.metadata.items())[:MAX_FACTS]
    fact_limit = min(MAX_FACT_BYTES, limit)
    facts = {_clipped(name, fact_limit): _clipped(value, fact_limit) for name, value in known}
    details: list[Any] = [
        error_details_pb2.ErrorInfo(
            reason=failure.reason.value,
            domain=DOMAIN,
            metadata={**facts, "executed": failure.executed.name.lower()},
        )
    ]
    if failure.retry_delay_s is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=_duration(failure.retry_delay_s)))
    if not violations and (field := facts.get("field")):
        violations = [(field, message)]
    if violations:
        violation = error_details_pb2.BadRequest.FieldViolation
        described: list[Any] = []
        left = limit
        for field, text in violations:
            left -= _encoded_bytes(field) + _encoded_bytes(text)
            if left < 0 and described:
                break
            described.append(violation(field=_clipped(field, limit), description=_clipped(text, limit)))
        details.append(error_details_pb2.BadRequest(field_violations=described))
    packed = []
    for detail in details:
        wrapper = any_pb2.Any()
        wrapper.Pack(detail)
        packed.append(wrapper)
    return status_pb2.Status(code=code_of(failure), message=message, details=packed)


def _trailer_bytes(status: status_pb2.Status) -> int:
    """What the status takes of trailing metadata: HTTP/2 counts names, values as they travel, and 32 bytes for each."""
    details = -(-status.ByteSize() * 4 // 3)
    return _PLAIN_TRAILER_BYTES + _encoded_bytes(status.message) + details


def _encoded_bytes(text: str) -> int:
    """Bytes of the text in a header, where all but printable ASCII takes three a byte."""
    if text.isascii() and text.isprintable() and "%" not in text:
        return len(text)
    return sum(1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode("utf-8", "replace")) for char in text)


async def abort(
    context: grpc.aio.ServicerContext[Any, Any], failure: Failure, violations: Sequence[tuple[str, str]] = ()
) -> NoReturn:
    """Ends the rpc with the failure and its details; `violations` as in `to_status`."""
    await context.abort_with_status(rpc_status.to_status(to_status(failure, violations)))
    raise AssertionError("abort_with_status returned")


async def abort_own_rpc(
    context: grpc.aio.ServicerContext[Any, Any], failure: Failure, trailers: Sequence[tuple[str, str | bytes]]
) -> NoReturn:
    """Ends an rpc of a user's own proto: with the trailing metadata of its handler, and our details beside it.

    Where the handler has details of its own, ours are left out: an rpc has one `grpc-status-details-bin`.
    """
    has_details = any(key == _DETAILS for key, _ in trailers)
    theirs = sum(32 + len(key) + len(value) * 4 // 3 for key, value in trailers)
    # Fields are those of our requests.
    status: Any = rpc_status.to_status(to_status(at_field(failure, ""), room=MAX_TRAILER_BYTES - theirs))
    ours = () if has_details else tuple(status.trailing_metadata)
    await context.abort(status.code, status.details, (*trailers, *ours))
    raise AssertionError("abort returned")


def from_rpc_error(error: grpc.RpcError) -> Failure:
    """The failure of an rpc. Without ErrorInfo (the transport failed) the call may have run."""
    code: grpc.StatusCode = error.code()
    message: str = error.details() or ""
    try:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]  # an aio error quacks as a call
    except ValueError:  # the details belong to another status: gRPC itself ended the rpc after us
        status = None
    info, retry_delay_s = None, None
    for detail in status.details if status is not None else ():
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_delay_s = _seconds(retry.retry_delay)
    if info is None or info.domain != DOMAIN:
        return _transport_failure(code, message)
    try:
        reason = Reason(info.reason)
    except ValueError:
        reason = Reason.INTERNAL
    metadata = dict(info.metadata)
    executed = Executed.__members__.get(metadata.pop("executed", "unknown").upper(), Executed.UNKNOWN)
    return Failure(
        reason=reason,
        message=message,
        executed=executed,
        retry_delay_s=retry_delay_s,
        code=_NUMBER[code],
        metadata=metadata,
    )


def unauthenticated(message: str) -> grpc.aio.AioRpcError:
    """The error of an rpc that was not sent, because the token source has no token."""
    failure = Failure(reason=Reason.UNAUTHENTICATED, message=message, executed=Executed.NO)
    status: Any = rpc_status.to_status(to_status(failure))
    trailing = grpc.aio.Metadata(*status.trailing_metadata)
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), trailing, details=message)


def unresolved(message: str) -> grpc.aio.AioRpcError:
    """The error of an rpc that was not sent, because no address of its server is known."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(_Code.UNAVAILABLE, nothing, nothing, details=message)


def is_unknown_there(error: grpc.RpcError) -> bool:
    """Whether the server does not have the rpc at all."""
    return error.code() is _Code.UNIMPLEMENTED and not has_details(error)


def has_details(error: grpc.RpcError) -> bool:
    """Whether a server of slotmesh has refused the rpc: they do so with details."""
    try:
        return rpc_status.from_call(error) is not None  # type: ignore[arg-type]  # as above
    except ValueError:
        return True


def _transport_failure(code: grpc.StatusCode, message: str) -> Failure:
    """The transport, not slotmesh, ended the rpc."""
    reason = {
        _Code.UNAVAILABLE: Reason.ROUTER_LOST,
        _Code.CANCELLED: Reason.CANCELLED,
        _Code.DEADLINE_EXCEEDED: Reason.DEADLINE_RUNNING,
        _Code.UNIMPLEMENTED: Reason.NOT_IMPLEMENTED,
        _Code.RESOURCE_EXHAUSTED: Reason.PAYLOAD_TOO_LARGE,
        _Code.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
        _Code.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
    }.get(code, Reason.INTERNAL)
    executed = Executed.NO if code is _Code.UNIMPLEMENTED else Executed.UNKNOWN
    message = message.strip() or f"the rpc ended with {code.name}, without details"
    return Failure(reason=reason, message=message, executed=executed, code=_NUMBER[code])


# -- exceptions --------------------------------------------------------------------------------------------------


def to_exception(failure: Failure, *, endpoint: str = "", method: str = "", call_id: int = 0) -> SlotmeshError:
    """The exception for the failure."""
    status = name_of(code_of(failure))
    return ERROR_OF[failure.reason](
        f"{status}/{failure.reason.value}: {failure.message}",
        status=status,
        executed=failure.executed,
        endpoint=endpoint,
        method=method,
        call_id=call_id,
        replica_id=failure.metadata.get("replica_id", ""),
        retry_delay_s=failure.retry_delay_s,
        metadata=failure.metadata,
    )


def _executed(wire: int) -> Executed:
    """What is unset, or of a newer protocol, is not trusted."""
    return Executed(wire) if wire in _EXECUTED_NUMBERS else Executed.UNKNOWN


def _seconds(wire: duration_pb2.Duration) -> float:
    return wire.ToNanoseconds() / 1e9


def _clipped(text: str, limit: int) -> str:
    """As much of the text as fits in `limit` bytes of a header, where all but printable ASCII takes three a byte."""
    size = 0
    for at, char in enumerate(text):
        size += 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode("utf-8", "replace"))
        if size > limit:
            return f"{text[:at]}…"
    return text


def _duration(seconds: float) -> duration_pb2.Duration:
    wire = duration_pb2.Duration()
    wire.FromNanoseconds(round(seconds * 1e9))
    return wire
