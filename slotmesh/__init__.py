"""slotmesh: a gRPC-native serving mesh. What applications import, and nothing else.

The client and the decorators are loaded when they are first asked for: a service that needs the errors does not pay.
If gRPC is not loaded yet, its event engine is disabled (`slotmesh.runtime.environment`), which makes calls quicker; an
application that sets `GRPC_EXPERIMENTS` itself, even to an empty value, keeps gRPC as it wants it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from slotmesh.later_imports import later
from slotmesh.runtime.environment import set_application_environment
from slotmesh.version import VERSION

if TYPE_CHECKING:
    from slotmesh.calls.call_options import OptionChanges
    from slotmesh.calls.prefix_hashes import prefix_blocks
    from slotmesh.client.broadcast import Broadcast, BroadcastMethod, BroadcastResult
    from slotmesh.client.calls.values import ValueStream
    from slotmesh.client.endpoint import Endpoint, Lane
    from slotmesh.client.handler_mesh import mesh, mesh_sync
    from slotmesh.client.interface import ClientT, Interface, method
    from slotmesh.client.mesh import Mesh, connect
    from slotmesh.client.method import Method
    from slotmesh.client.slots.direct_lanes import DirectLanes, DirectMethod
    from slotmesh.client.slots.reservations import Reservation, ReservationOfAll
    from slotmesh.client.slots.slot import ReplicaLoad, Slot, SlotMethod
    from slotmesh.client.sync.broadcast import SyncBroadcast, SyncBroadcastMethod
    from slotmesh.client.sync.mesh import SyncEndpoint, SyncLane, SyncMesh, connect_sync
    from slotmesh.client.sync.method import SyncMethod, SyncValueStream
    from slotmesh.client.sync.slots import (
        SyncDirectLanes,
        SyncDirectMethod,
        SyncReservation,
        SyncReservationOfAll,
        SyncSlot,
        SyncSlotMethod,
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

__getattr__ = later(
    __name__,
    {
        "slotmesh.calls.call_options": ("OptionChanges",),
        "slotmesh.calls.prefix_hashes": ("prefix_blocks",),
        "slotmesh.client.broadcast": ("Broadcast", "BroadcastMethod", "BroadcastResult"),
        "slotmesh.client.calls.values": ("ValueStream",),
        "slotmesh.client.endpoint": ("Endpoint", "Lane"),
        "slotmesh.client.handler_mesh": ("mesh", "mesh_sync"),
        "slotmesh.client.interface": ("ClientT", "Interface", "method"),
        "slotmesh.client.mesh": ("Mesh", "connect"),
        "slotmesh.client.method": ("Method",),
        "slotmesh.client.slots.direct_lanes": ("DirectLanes", "DirectMethod"),
        "slotmesh.client.slots.reservations": ("Reservation", "ReservationOfAll"),
        "slotmesh.client.slots.slot": ("ReplicaLoad", "Slot", "SlotMethod"),
        "slotmesh.client.sync.broadcast": ("SyncBroadcast", "SyncBroadcastMethod"),
        "slotmesh.client.sync.mesh": ("SyncEndpoint", "SyncLane", "SyncMesh", "connect_sync"),
        "slotmesh.client.sync.method": ("SyncMethod", "SyncValueStream"),
        "slotmesh.client.sync.slots": (
            "SyncDirectLanes",
            "SyncDirectMethod",
            "SyncReservation",
            "SyncReservationOfAll",
            "SyncSlot",
            "SyncSlotMethod",
        ),
        "slotmesh.client.tls": ("Tls",),
        "slotmesh.codec": ("DecodeError", "EncodeError"),
        "slotmesh.handlers": ("BatchState", "RunningBatch", "batch", "deployment"),
        "slotmesh.handlers.context": ("CallContext", "HttpContext", "OwnedKeys", "context", "contexts"),
        "slotmesh.handlers.multiplexed": ("multiplexed",),
        "slotmesh.handlers.prefix_arguments": ("prefix_argument",),
        "slotmesh.handlers.replica_context": ("ReplicaContext", "replica"),
        "slotmesh.handlers.reporting": ("report", "report_evicted", "report_evicted_all"),
        "slotmesh.handlers.rpc_context": ("RpcContext", "abort"),
    },
)

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
    "OptionChanges",
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


def __dir__() -> list[str]:
    return __all__
