"""What makes a class or a function a handler: `@deployment`, `@batch`, and how a replica reads them."""

from __future__ import annotations

from slotmesh.handlers.batching import BatchControl, BatchState, RunningBatch
from slotmesh.handlers.decorators import batch, batch_control, deployment, whole_batches
from slotmesh.handlers.description import CALL, HandlerDescription, MethodDescription, describe
from slotmesh.handlers.kinds import MethodKind
from slotmesh.handlers.settings import BatchSettings, DeploymentSettings

__all__ = [
    "CALL",
    "BatchControl",
    "BatchSettings",
    "BatchState",
    "DeploymentSettings",
    "HandlerDescription",
    "MethodDescription",
    "MethodKind",
    "RunningBatch",
    "batch",
    "batch_control",
    "deployment",
    "describe",
    "whole_batches",
]
