"""slotmesh: a gRPC-native serving mesh. What applications import, and nothing else.

The client and the decorators are loaded when they are first asked for: a service that needs the errors does not pay.
Where gRPC is not loaded yet it is told to do without its event engine (`slotmesh.runtime.environment`), which makes
calls quicker; an application that sets `GRPC_EXPERIMENTS` itself, to nothing too, keeps gRPC as it wants it.
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
    Reason,
    ReplicaGone,
    ReplicaLost,
    ReplicaNotFound,
    ResourceExhausted,
    ResultEvicted,
    RevisionConflict,
    RouterLost,
    SessionFenced,
    SlotError,
    SlotExpired,
    SlotmeshError,
    SlotUnknown,
    SlotUsed,
    StaleTable,
    StoreUnavailable,
    Unauthenticated,
    Unavailable,
    WindowExceeded,
)
from slotmesh.runtime.environment import set_application_environment
from slotmesh.version import VERSION

if TYPE_CHECKING:
    from slotmesh.client import (
        DirectLanes,
        DirectMethod,
        Endpoint,
        Lane,
        Mesh,
        Method,
        ReplicaLoad,
        Reservation,
        ReservationOfAll,
        Slot,
        SlotMethod,
        Tls,
        ValueStream,
        connect,
    )
    from slotmesh.client.sync import (
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
    from slotmesh.handlers import BatchState, RunningBatch, batch, deployment
    from slotmesh.handlers.aborting import abort
    from slotmesh.handlers.context import CallContext, context, contexts
    from slotmesh.handlers.own_mesh import mesh, mesh_sync

_LATER = {
    "BatchState": "slotmesh.handlers",
    "CallContext": "slotmesh.handlers.context",
    "DirectLanes": "slotmesh.client",
    "DirectMethod": "slotmesh.client",
    "Endpoint": "slotmesh.client",
    "Lane": "slotmesh.client",
    "Mesh": "slotmesh.client",
    "Method": "slotmesh.client",
    "ReplicaLoad": "slotmesh.client",
    "Reservation": "slotmesh.client",
    "ReservationOfAll": "slotmesh.client",
    "RunningBatch": "slotmesh.handlers",
    "Slot": "slotmesh.client",
    "SlotMethod": "slotmesh.client",
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
    "Tls": "slotmesh.client",
    "ValueStream": "slotmesh.client",
    "abort": "slotmesh.handlers.aborting",
    "batch": "slotmesh.handlers",
    "connect": "slotmesh.client",
    "connect_sync": "slotmesh.client.sync",
    "context": "slotmesh.handlers.context",
    "contexts": "slotmesh.handlers.context",
    "deployment": "slotmesh.handlers",
    "mesh": "slotmesh.handlers.own_mesh",
    "mesh_sync": "slotmesh.handlers.own_mesh",
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
    "CallCancelled",
    "CallContext",
    "DeadlineExceeded",
    "DeadlineInQueue",
    "DeadlineRunning",
    "DirectLanes",
    "DirectMethod",
    "Draining",
    "DuplicateCallId",
    "Endpoint",
    "EndpointNotFound",
    "Executed",
    "HandlerError",
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
    "PayloadTooLarge",
    "PermissionDenied",
    "PredecessorFailed",
    "QueueFull",
    "QueueTimeout",
    "Reason",
    "ReplicaGone",
    "ReplicaLoad",
    "ReplicaLost",
    "ReplicaNotFound",
    "Reservation",
    "ReservationOfAll",
    "ResourceExhausted",
    "ResultEvicted",
    "RevisionConflict",
    "RouterLost",
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
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
