"""Every way a call can fail: the reasons, whether the call was executed, and the exceptions users catch.

Purpose: the failure vocabulary of the whole mesh. Pure: the cores decide in these terms.
Invariants: a `Failure` always states whether the call was executed; each `Reason` has exactly one exception class.
`slotmesh.status` converts them to and from gRPC statuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final

_ITEMS_SHOWN: Final = 10
"""Places of items that a text lists."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Executed(Enum):
    """Whether a failed call was executed. The values are those of `slotmesh.v1.Executed`."""

    NO = 1
    """Not executed, and never will be: a retry elsewhere is always safe."""
    UNKNOWN = 2
    """May have been executed, in part or in full: retry only what is idempotent."""
    YES = 3
    """Executed."""


class Reason(StrEnum):
    """The stable name of a condition. Low cardinality: doubles as a metric label."""

    ENDPOINT_NOT_FOUND = "ENDPOINT_NOT_FOUND"
    BACKEND_NOT_FOUND = "BACKEND_NOT_FOUND"
    METHOD_NOT_FOUND = "METHOD_NOT_FOUND"
    REPLICA_NOT_FOUND = "REPLICA_NOT_FOUND"
    ROUTE_NOT_FOUND = "ROUTE_NOT_FOUND"
    BAD_REQUEST = "BAD_REQUEST"
    BAD_ARGUMENTS = "BAD_ARGUMENTS"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    DUPLICATE_CALL_ID = "DUPLICATE_CALL_ID"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    BACKEND_IN_USE = "BACKEND_IN_USE"
    REPLICA_CONNECTED = "REPLICA_CONNECTED"
    REVISION_CONFLICT = "REVISION_CONFLICT"
    APPLY_CONFLICT = "APPLY_CONFLICT"
    QUEUE_FULL = "QUEUE_FULL"
    WINDOW_EXCEEDED = "WINDOW_EXCEEDED"
    CLIENT_BUFFER_FULL = "CLIENT_BUFFER_FULL"
    NO_SLOT = "NO_SLOT"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    TENANT_LIMIT = "TENANT_LIMIT"
    BACKEND_UNAVAILABLE = "BACKEND_UNAVAILABLE"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    NOT_LEADER = "NOT_LEADER"
    DRAINING = "DRAINING"
    STREAM_SILENT = "STREAM_SILENT"
    STALE_TABLE = "STALE_TABLE"
    REPLICA_LOST = "REPLICA_LOST"
    ROUTER_LOST = "ROUTER_LOST"
    QUEUE_TIMEOUT = "QUEUE_TIMEOUT"
    DEADLINE_IN_QUEUE = "DEADLINE_IN_QUEUE"
    DEADLINE_RUNNING = "DEADLINE_RUNNING"
    CANCELLED = "CANCELLED"
    SLOT_UNKNOWN = "SLOT_UNKNOWN"
    SLOT_EXPIRED = "SLOT_EXPIRED"
    SLOT_USED = "SLOT_USED"
    REPLICA_GONE = "REPLICA_GONE"
    SESSION_FENCED = "SESSION_FENCED"
    RESULT_EVICTED = "RESULT_EVICTED"
    PREDECESSOR_FAILED = "PREDECESSOR_FAILED"
    HANDLER_ERROR = "HANDLER_ERROR"
    BATCH_SIZE_MISMATCH = "BATCH_SIZE_MISMATCH"
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a call, or a whole run of calls, has no result. A value: cores pass it on, edges turn it into frames."""

    reason: Reason
    message: str
    """For a person; names the field and the way out. Never a traceback."""
    executed: Executed = Executed.NO
    retry_delay_s: float | None = None
    """When a retry may succeed, seconds from now."""
    code: int | None = None
    """gRPC status number if it differs from the reason's own: a handler may choose one."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    trailers: bytes = b""
    """Of an rpc of a user's own proto: the trailing metadata that its handler has set
    (`slotmesh.calls.result_envelopes`).
    """


def bad_field(field: str, what: str) -> Failure:
    """The failure of a request with an invalid field."""
    return Failure(reason=Reason.BAD_REQUEST, message=f"{field}: {what}", metadata={"field": field})


def bad_metadata(key: str, what: str) -> Failure:
    """The failure of a request with invalid metadata: no field of its message is at fault."""
    return Failure(reason=Reason.BAD_REQUEST, message=f"{key}: {what}", metadata={"metadata_key": key})


def at_field(failure: Failure, field: str) -> Failure:
    """The failure, of a request in which this is the field at fault; empty: none is."""
    metadata = {name: fact for name, fact in failure.metadata.items() if name != "field"}
    return replace(failure, metadata={**metadata, "field": field} if field else metadata)


class SlotmeshError(Exception):
    """A call or an operation that failed. `str()` starts with `STATUS/REASON: `.

    Catch the class of one reason (`slotmesh.QueueFull`), of a family (`slotmesh.Unavailable`), or this one for all.
    """

    reason: Reason = Reason.INTERNAL
    """The stable name of the condition. Decide by it, or by the class."""
    usual_status: str = "INTERNAL"
    """Name of the reason's gRPC status; `status` has that of this error, which a handler may have chosen."""

    def __init__(
        self,
        text: str,
        *,
        status: str = "",
        executed: Executed = Executed.NO,
        endpoint: str = "",
        method: str = "",
        call_id: int = 0,
        replica_id: str = "",
        retry_delay_s: float | None = None,
        metadata: Mapping[str, str] = _NOTHING,
    ) -> None:
        super().__init__(text)
        self.status = status
        """Name of the gRPC status, as `UNAVAILABLE`."""
        self.executed = executed
        """Whether the call was executed."""
        self.endpoint = endpoint
        """The endpoint that was called; empty where there was none."""
        self.method = method
        """The method that was called; empty where there was none."""
        self.call_id = call_id
        """The call's id on its stream; 0 where it had none."""
        self.replica_id = replica_id
        """The replica it failed at; empty where none was involved or known."""
        self.retry_delay_s = retry_delay_s
        """When a retry may succeed, seconds; None if that is not known."""
        self.metadata = metadata
        """Facts about the condition."""
        self.failed_items: tuple[int, ...] = ()
        """Of a `map`: the places of all items that failed, counted from 0, ascending. Empty where it was no map."""

    def of_map(self, failed_items: tuple[int, ...], count: int) -> None:
        """This is the first failure of a map of `count` items, of which these failed. Adds them to the text."""
        self.failed_items = failed_items
        self.args = (f"{self.args[0]}; {items_failed(failed_items, count)}", *self.args[1:])


def items_failed(places: tuple[int, ...], count: int) -> str:
    """Which items of a map failed, for a person."""
    shown = ", ".join(map(str, places[:_ITEMS_SHOWN])) + (", …" if len(places) > _ITEMS_SHOWN else "")
    return f"{len(places):,} of {count:,} items of the map failed: {shown} (counted from 0)"


class NotFound(SlotmeshError):
    """The named resource does not exist."""

    usual_status = "NOT_FOUND"


class InvalidArgument(SlotmeshError):
    """The request is invalid; the same request fails again."""

    usual_status = "INVALID_ARGUMENT"


class ResourceExhausted(SlotmeshError):
    """A limit is reached; `retry_delay_s`: when to try again."""

    usual_status = "RESOURCE_EXHAUSTED"


class Unavailable(SlotmeshError):
    """A part of the mesh cannot be reached at present."""

    usual_status = "UNAVAILABLE"


class DeadlineExceeded(SlotmeshError):
    """A timeout passed."""

    usual_status = "DEADLINE_EXCEEDED"


class SlotError(SlotmeshError):
    """The reserved slot cannot be used."""

    usual_status = "FAILED_PRECONDITION"


class Aborted(SlotmeshError):
    """The request conflicts with a newer state."""

    usual_status = "ABORTED"


class EndpointNotFound(NotFound):
    """No endpoint has this name."""

    reason = Reason.ENDPOINT_NOT_FOUND


class BackendNotFound(NotFound):
    """No backend has this name."""

    reason = Reason.BACKEND_NOT_FOUND


class MethodNotFound(NotFound):
    """The handler has no such public method."""

    reason = Reason.METHOD_NOT_FOUND


class ReplicaNotFound(NotFound):
    """No replica has this id."""

    reason = Reason.REPLICA_NOT_FOUND


class RouteNotFound(NotFound):
    """No HTTP route has this path."""

    reason = Reason.ROUTE_NOT_FOUND


class BadRequest(InvalidArgument):
    """The request is invalid; the message names the field."""

    reason = Reason.BAD_REQUEST


class BadArguments(InvalidArgument):
    """The payload does not decode to the parameters of the method; the message has the path."""

    reason = Reason.BAD_ARGUMENTS


class PayloadTooLarge(InvalidArgument):
    """The payload or the result is too large; the message has both sizes."""

    reason = Reason.PAYLOAD_TOO_LARGE


class DuplicateCallId(InvalidArgument):
    """Call ids on a stream must strictly increase."""

    reason = Reason.DUPLICATE_CALL_ID


class Unauthenticated(SlotmeshError):
    """The credential of the caller is missing, invalid or expired."""

    reason = Reason.UNAUTHENTICATED
    usual_status = "UNAUTHENTICATED"


class PermissionDenied(SlotmeshError):
    """The caller lacks the role; `metadata["role"]` has the roles of which one is needed."""

    reason = Reason.PERMISSION_DENIED
    usual_status = "PERMISSION_DENIED"


class BackendInUse(SlotmeshError):
    """A traffic policy names the backend; change the policy first."""

    reason = Reason.BACKEND_IN_USE
    usual_status = "FAILED_PRECONDITION"


class ReplicaConnected(SlotmeshError):
    """The replica has not ended: it reports, or a router has a link to it."""

    reason = Reason.REPLICA_CONNECTED
    usual_status = "FAILED_PRECONDITION"


class QueueFull(ResourceExhausted):
    """The backend's queue is full."""

    reason = Reason.QUEUE_FULL


class WindowExceeded(ResourceExhausted):
    """The stream has more unanswered calls or bytes than its window allows."""

    reason = Reason.WINDOW_EXCEEDED


class ClientBufferFull(ResourceExhausted):
    """Too many calls or bytes wait in the client; the call was not sent."""

    reason = Reason.CLIENT_BUFFER_FULL


class QuotaExceeded(ResourceExhausted):
    """The caller has reached a quota; `metadata["quota"]` has its name."""

    reason = Reason.QUOTA_EXCEEDED


class TenantLimited(ResourceExhausted):
    """The call's tenant has reached a limit of the endpoint; `metadata` has `tenant` and the name of the `limit`."""

    reason = Reason.TENANT_LIMIT


class NoSlot(ResourceExhausted):
    """No slot was free in time."""

    reason = Reason.NO_SLOT


class BackendUnavailable(Unavailable):
    """No replica can serve the call, and none is expected."""

    reason = Reason.BACKEND_UNAVAILABLE


class StoreUnavailable(Unavailable):
    """The controller cannot store the change; the stored state stays in force."""

    reason = Reason.STORE_UNAVAILABLE


class NotLeader(Unavailable):
    """Another controller leads; `metadata["leader"]` has its address, if it is known."""

    reason = Reason.NOT_LEADER


class Draining(Unavailable):
    """The server stops and accepts no new work."""

    reason = Reason.DRAINING


class StreamSilent(Unavailable):
    """The stream had no calls and was silent for too long; its server has ended it."""

    reason = Reason.STREAM_SILENT


class StaleTable(Unavailable):
    """The router's table is older than what the call or its slot needs."""

    reason = Reason.STALE_TABLE


class ReplicaLost(Unavailable):
    """The replica died or its link broke; the call may have run."""

    reason = Reason.REPLICA_LOST


class RouterLost(Unavailable):
    """The router died or cannot be reached; a call that was sent may have run."""

    reason = Reason.ROUTER_LOST


class QueueTimeout(DeadlineExceeded):
    """The call waited for `max_queue_time` of its backend."""

    reason = Reason.QUEUE_TIMEOUT


class DeadlineInQueue(DeadlineExceeded):
    """The deadline of the call passed before it started."""

    reason = Reason.DEADLINE_IN_QUEUE


class DeadlineRunning(DeadlineExceeded):
    """The deadline of the call passed after it was sent to a replica."""

    reason = Reason.DEADLINE_RUNNING


class CallCancelled(SlotmeshError):
    """The caller cancelled the call."""

    reason = Reason.CANCELLED
    usual_status = "CANCELLED"


class SlotUnknown(SlotError):
    """No slot has this token."""

    reason = Reason.SLOT_UNKNOWN


class SlotExpired(SlotError):
    """The lease of the slot has ended."""

    reason = Reason.SLOT_EXPIRED


class SlotUsed(SlotError):
    """A call was dispatched into the slot before."""

    reason = Reason.SLOT_USED


class ReplicaGone(SlotError):
    """The replica of the slot has ended."""

    reason = Reason.REPLICA_GONE


class RevisionConflict(Aborted):
    """The configuration, or a resource, has changed since it was read; read it again and decide anew."""

    reason = Reason.REVISION_CONFLICT


class ApplyConflict(Aborted):
    """An applied file and another change have both changed a field."""

    reason = Reason.APPLY_CONFLICT


class SessionFenced(Aborted):
    """The session has a newer connection."""

    reason = Reason.SESSION_FENCED


class ResultEvicted(Aborted):
    """The call was executed, and its outcome is no longer kept."""

    reason = Reason.RESULT_EVICTED


class PredecessorFailed(Aborted):
    """An earlier call of its lane failed, and the lane stops at failures."""

    reason = Reason.PREDECESSOR_FAILED


class HandlerError(SlotmeshError):
    """The handler raised an exception; the log of the replica has the traceback."""

    reason = Reason.HANDLER_ERROR
    usual_status = "UNKNOWN"


class BatchSizeMismatch(SlotmeshError):
    """A batch method returned another number of results."""

    reason = Reason.BATCH_SIZE_MISMATCH


class NotImplementedByPeer(SlotmeshError):
    """The server does not have this rpc, frame or extension."""

    reason = Reason.NOT_IMPLEMENTED
    usual_status = "UNIMPLEMENTED"


class InternalError(SlotmeshError):
    """A defect of the mesh; the log of the server has the traceback."""

    reason = Reason.INTERNAL


def _subclasses(cls: type[SlotmeshError]) -> list[type[SlotmeshError]]:
    return [cls] + [leaf for child in cls.__subclasses__() for leaf in _subclasses(child)]


ERROR_OF: Mapping[Reason, type[SlotmeshError]] = MappingProxyType(
    {cls.reason: cls for cls in _subclasses(SlotmeshError) if "reason" in vars(cls) and cls is not SlotmeshError}
)
"""The exception class of each reason."""
