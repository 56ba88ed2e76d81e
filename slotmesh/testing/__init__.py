"""Handlers and whole meshes inside a test: real ones, in the test's own process.

    async with slotmesh.testing.handler(Digits, model="centroid") as digits:  # one replica, no sockets
        assert await digits.classify(pixels) == 7

    async with slotmesh.testing.mesh({"digits": Digits}) as mesh:  # controller, router, replicas, over real gRPC
        assert await mesh.endpoint("digits").classify(pixels) == 7

Invariants: handlers are passed as classes and functions, local ones too; after the block nothing of them runs. Nothing
else in slotmesh imports this package, the only one that may import the services.
"""

from __future__ import annotations

import sys

from slotmesh.runtime.service_modules import check_services

check_services(sys.path)

from slotmesh.testing.backends import Backend  # noqa: E402 - they import the services
from slotmesh.testing.calls import batch_contexts, call_context, make_context, own_mesh, replica_context, reports  # noqa: E402 - they import the services
from slotmesh.testing.hosting import HostedHandler, handler  # noqa: E402 - they import the services
from slotmesh.testing.meshes import RunningMesh, mesh  # noqa: E402 - they import the services
from slotmesh.testing.replay import Replay, ReplayedCall, ReplayedReplica, replay_balancer  # noqa: E402 - they import the services
from slotmesh.testing.sync import SyncRunningMesh, sync_mesh  # noqa: E402 - they import the services

__all__ = [
    "Backend",
    "HostedHandler",
    "Replay",
    "ReplayedCall",
    "ReplayedReplica",
    "RunningMesh",
    "SyncRunningMesh",
    "batch_contexts",
    "call_context",
    "handler",
    "make_context",
    "mesh",
    "own_mesh",
    "replay_balancer",
    "replica_context",
    "reports",
    "sync_mesh",
]
