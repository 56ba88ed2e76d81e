"""Who may call which rpc, written down by hand: what tests of roles expect.

Purpose: nothing here is asked of the code under test, of the protos or of docs/roles.md; whoever opens or closes an rpc
says so here, too. An rpc that is missing here is for nobody.
"""

from __future__ import annotations

from typing import Final

from slotmesh.security.identity import Role

OPEN: Final = frozenset(
    {
        ("grpc.health.v1.Health", "Check"),
        ("inference.GRPCInferenceService", "ServerLive"),
        ("inference.GRPCInferenceService", "ServerReady"),
    }
)
"""Nobody is asked who they are."""

_V, _I, _O = Role.VIEWER, Role.INVOKER, Role.OPERATOR
_ROUTER, _REPLICA, _CONTROLLER = Role.ROUTER, Role.REPLICA, Role.CONTROLLER

_CALLS: Final = {_I, _O, _REPLICA}
_SEES: Final = {_V, _O}
_CALLS_OR_SEES: Final = {_V, _I, _O, _REPLICA}
_EVERYBODY: Final = {_V, _I, _O, _ROUTER, _REPLICA, _CONTROLLER}

_SERVICES: Final[dict[str, tuple[tuple[set[Role], str], ...]]] = {
    "slotmesh.v1.RouterService": (
        (_CALLS, "Call CallStreaming StreamCalls Broadcast"),
        (_CALLS_OR_SEES, "DescribeEndpoints"),
    ),
    "inference.GRPCInferenceService": (
        (_CALLS, "ModelInfer ModelStreamInfer"),
        (_CALLS_OR_SEES, "ServerMetadata ModelReady ModelMetadata ModelConfig ModelStatistics RepositoryIndex"),
        (_EVERYBODY, "ServerLive ServerReady"),
    ),
    "slotmesh.v1.SlotService": ((_CALLS, "ReserveSlot RenewSlot ReleaseSlot Dispatch DispatchStreaming"),),
    "slotmesh.v1.DirectService": ((_CALLS, "Attach"),),
    "slotmesh.v1.TapService": ((_SEES, "TapCalls ListCalls"),),
    "slotmesh.v1.ControllerService": (
        (_SEES, "GetBackend ListBackends GetEndpoint ListEndpoints ListRevisions"),
        (_SEES, "ListReplicas ListRouters GetSnapshot WatchEvents WaitOperations"),
        ({_V, _I, _O}, "GetHttpRoute ListHttpRoutes"),
        ({_O}, "ApplyMesh ApplyBackend DeleteBackend ApplyEndpoint DeleteEndpoint ApplyHttpRoute DeleteHttpRoute"),
        ({_O}, "SetTraffic ShiftTraffic Rollback PauseRollout"),
        ({_O}, "DrainReplica ForgetReplica AdoptState ReadLogs"),
    ),
    "slotmesh.v1.HttpRouteService": (({_V, _I, _O}, "WatchHttpRoutes"),),
    "slotmesh.internal.v1.MembershipService": (
        ({_REPLICA}, "AttachReplica"),
        ({_ROUTER}, "AttachRouter"),
    ),
    "slotmesh.internal.v1.ReplicaService": (({_ROUTER}, "Execute"),),
    "slotmesh.v1.InfoService": ((_EVERYBODY, "GetServerInfo"),),
    "grpc.health.v1.Health": (
        (_EVERYBODY, "Check Watch"),
        (_SEES, "List"),
    ),
    "grpc.channelz.v1.Channelz": (
        (_SEES, "GetTopChannels GetServers GetServer GetServerSockets GetChannel GetSubchannel GetSocket"),
    ),
    "grpc.reflection.v1.ServerReflection": ((_SEES, "ServerReflectionInfo"),),
    "grpc.reflection.v1alpha.ServerReflection": ((_SEES, "ServerReflectionInfo"),),
}

EXPECTED: Final[dict[tuple[str, str], frozenset[Role]]] = {
    (service, rpc): frozenset(roles)
    for service, rows in _SERVICES.items()
    for roles, rpcs in rows
    for rpc in rpcs.split()
}
"""By service and rpc: each role that suffices by itself."""
