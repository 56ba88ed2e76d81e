"""slotmesh: a gRPC-native serving mesh. What applications import, and nothing else.

The client and the decorators are loaded when they are first asked for: a service that needs the errors does not pay.
If gRPC is not loaded yet, its event engine is disabled (`slotmesh.runtime.environment`), which makes calls quicker; an
application that sets `GRPC_EXPERIMENTS` itself, even to an empty value, keeps gRPC as it wants it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slotmesh.errors import (
    Aborted,
    ApplyConflict,
    BackendInUse,
    BackendNotFound,
    BackendUnavailable,
    BadArguments,
    BadRequest,
    BatchSizeMismatch,
    CallCancelled,
    ClientBufferFull,
    DeadlineExceeded,
    DeadlineInQueue,
    DeadlineRunning,
    Draining,
    DuplicateCallId,
    EndpointNotFound,
    Executed,
    HandlerError,
    InternalError,
    InvalidArgument,
    MethodNotFound,
    NoSlot,
    NotFound,
    NotImplementedByPeer,
    NotLeader,
    PayloadTooLarge,
    PermissionDenied,
    PredecessorFailed,
    QueueFull,
    QueueTimeout,
    QuotaExceeded,
    Reason,
    ReplicaConnected,
    ReplicaGone,
    ReplicaLost,
    ReplicaNotFound,
    ResourceExhausted,
    ResultEvicted,
    RevisionConflict,
    RouteNotFound,
    RouterLost,
    SessionFenced,
    SlotError,
    SlotExpired,
    SlotmeshError,
    SlotUnknown,
    SlotUsed,
    StaleTable,
    StoreUnavailable,
    StreamSilent,
    TenantLimited,
    Unauthenticated,
    Unavailable,
    WindowExceeded,
)
from slotmesh.runtime.environment import set_application_environment
from slotmesh.version import VERSION

if TYPE_CHECKING:
    from slotmesh.calls.prefix_hashes import prefix_blocks
    from slotmesh.client.broadcast import Broadcast, BroadcastMethod, BroadcastResult
    from slotmesh.client.calls.values import ValueStream
    from slotmesh.client.endpoint import Endpoint, Lane
    from slotmesh.client.handler_mesh import mesh, mesh_sync
    from slotmesh.client.interface import ClientT, Interface, method
    from slotmesh.client.mesh import Mesh, connect
    from slotmesh.client.method import Method
    from slotmesh.client.slots import (
        DirectLanes,
        DirectMethod,
        ReplicaLoad,
        Reservation,
        ReservationOfAll,
        Slot,
        SlotMethod,
    )
    from slotmesh.client.sync import (
        SyncBroadcast,
        SyncBroadcastMethod,
        SyncDirectLanes,
        SyncDirectMethod,
        SyncEndpoint,
        SyncLane,
        SyncMesh,
        SyncMethod,
        SyncReservation,
        SyncReservationOfAll,
        SyncSlot,
        SyncSlotMethod,
        SyncValueStream,
        connect_sync,
    )
    from slotmesh.client.tls import Tls
    from slotmesh.codec import DecodeError, EncodeError
    from slotmesh.handlers import BatchState, RunningBatch, batch, deployment
    from slotmesh.handlers.context import CallContext, HttpContext, OwnedKeys, context, contexts
    from slotmesh.handlers.multiplexed import multiplexed
    from slotmesh.handlers.prefix_arguments import prefix_argument
    from slotmesh.handlers.replica_context import ReplicaContext, replica
    from slotmesh.handlers.reporting import report, report_evicted, report_evicted_all
    from slotmesh.handlers.rpc_context import RpcContext, abort

_LATER = {
    "BatchState": "slotmesh.handlers",
    "Broadcast": "slotmesh.client.broadcast",
    "BroadcastMethod": "slotmesh.client.broadcast",
    "BroadcastResult": "slotmesh.client.broadcast",
    "CallContext": "slotmesh.handlers.context",
    "HttpContext": "slotmesh.handlers.context",
    "OwnedKeys": "slotmesh.handlers.context",
    "RpcContext": "slotmesh.handlers.rpc_context",
    "ClientT": "slotmesh.client.interface",
    "DecodeError": "slotmesh.codec",
    "DirectLanes": "slotmesh.client.slots",
    "DirectMethod": "slotmesh.client.slots",
    "EncodeError": "slotmesh.codec",
    "Endpoint": "slotmesh.client.endpoint",
    "Interface": "slotmesh.client.interface",
    "Lane": "slotmesh.client.endpoint",
    "Mesh": "slotmesh.client.mesh",
    "Method": "slotmesh.client.method",
    "ReplicaContext": "slotmesh.handlers.replica_context",
    "ReplicaLoad": "slotmesh.client.slots",
    "Reservation": "slotmesh.client.slots",
    "ReservationOfAll": "slotmesh.client.slots",
    "RunningBatch": "slotmesh.handlers",
    "Slot": "slotmesh.client.slots",
    "SlotMethod": "slotmesh.client.slots",
    "SyncBroadcast": "slotmesh.client.sync",
    "SyncBroadcastMethod": "slotmesh.client.sync",
    "SyncDirectLanes": "slotmesh.client.sync",
    "SyncDirectMethod": "slotmesh.client.sync",
    "SyncEndpoint": "slotmesh.client.sync",
    "SyncLane": "slotmesh.client.sync",
    "SyncMesh": "slotmesh.client.sync",
    "SyncMethod": "slotmesh.client.sync",
    "SyncReservation": "slotmesh.client.sync",
    "SyncReservationOfAll": "slotmesh.client.sync",
    "SyncSlot": "slotmesh.client.sync",
    "SyncSlotMethod": "slotmesh.client.sync",
    "SyncValueStream": "slotmesh.client.sync",
    "Tls": "slotmesh.client.tls",
    "ValueStream": "slotmesh.client.calls.values",
    "abort": "slotmesh.handlers.rpc_context",
    "batch": "slotmesh.handlers",
    "connect": "slotmesh.client.mesh",
    "connect_sync": "slotmesh.client.sync",
    "context": "slotmesh.handlers.context",
    "contexts": "slotmesh.handlers.context",
    "deployment": "slotmesh.handlers",
    "mesh": "slotmesh.client.handler_mesh",
    "mesh_sync": "slotmesh.client.handler_mesh",
    "method": "slotmesh.client.interface",
    "multiplexed": "slotmesh.handlers.multiplexed",
    "report": "slotmesh.handlers.reporting",
    "replica": "slotmesh.handlers.replica_context",
    "report_evicted": "slotmesh.handlers.reporting",
    "report_evicted_all": "slotmesh.handlers.reporting",
    "prefix_argument": "slotmesh.handlers.prefix_arguments",
    "prefix_blocks": "slotmesh.calls.prefix_hashes",
}

__version__ = VERSION

set_application_environment()

__all__ = [
    "Aborted",
    "ApplyConflict",
    "BackendInUse",
    "BackendNotFound",
    "BackendUnavailable",
    "BadArguments",
    "BadRequest",
    "BatchSizeMismatch",
    "BatchState",
    "Broadcast",
    "BroadcastMethod",
    "BroadcastResult",
    "CallCancelled",
    "CallContext",
    "ClientBufferFull",
    "ClientT",
    "DeadlineExceeded",
    "DeadlineInQueue",
    "DeadlineRunning",
    "DecodeError",
    "DirectLanes",
    "DirectMethod",
    "Draining",
    "DuplicateCallId",
    "EncodeError",
    "Endpoint",
    "EndpointNotFound",
    "Executed",
    "HandlerError",
    "HttpContext",
    "Interface",
    "InternalError",
    "InvalidArgument",
    "Lane",
    "Mesh",
    "Method",
    "MethodNotFound",
    "NoSlot",
    "NotFound",
    "NotImplementedByPeer",
    "NotLeader",
    "OwnedKeys",
    "PayloadTooLarge",
    "PermissionDenied",
    "PredecessorFailed",
    "QueueFull",
    "QueueTimeout",
    "QuotaExceeded",
    "Reason",
    "ReplicaConnected",
    "ReplicaContext",
    "ReplicaGone",
    "ReplicaLoad",
    "ReplicaLost",
    "ReplicaNotFound",
    "Reservation",
    "ReservationOfAll",
    "ResourceExhausted",
    "ResultEvicted",
    "RevisionConflict",
    "RouteNotFound",
    "RouterLost",
    "RpcContext",
    "RunningBatch",
    "SessionFenced",
    "Slot",
    "SlotError",
    "SlotExpired",
    "SlotMethod",
    "SlotUnknown",
    "SlotUsed",
    "SlotmeshError",
    "StaleTable",
    "StoreUnavailable",
    "StreamSilent",
    "SyncBroadcast",
    "SyncBroadcastMethod",
    "SyncDirectLanes",
    "SyncDirectMethod",
    "SyncEndpoint",
    "SyncLane",
    "SyncMesh",
    "SyncMethod",
    "SyncReservation",
    "SyncReservationOfAll",
    "SyncSlot",
    "SyncSlotMethod",
    "SyncValueStream",
    "TenantLimited",
    "Tls",
    "Unauthenticated",
    "Unavailable",
    "ValueStream",
    "WindowExceeded",
    "__version__",
    "abort",
    "batch",
    "connect",
    "connect_sync",
    "context",
    "contexts",
    "deployment",
    "mesh",
    "mesh_sync",
    "method",
    "multiplexed",
    "prefix_argument",
    "prefix_blocks",
    "replica",
    "report",
    "report_evicted",
    "report_evicted_all",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
