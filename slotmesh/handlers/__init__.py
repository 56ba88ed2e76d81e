"""What makes a class or a function a handler: `@deployment`, `@batch`, and how a replica reads them."""

from __future__ import annotations

from slotmesh.handlers.context import call_metadata
from slotmesh.handlers.decorators import batch, deployment
from slotmesh.handlers.description import CALL, HandlerDescription, Kind, MethodDescription, describe
from slotmesh.handlers.settings import BatchSettings, DeploymentSettings

__all__ = [
    "CALL",
    "BatchSettings",
    "DeploymentSettings",
    "HandlerDescription",
    "Kind",
    "MethodDescription",
    "batch",
    "call_metadata",
    "deployment",
    "describe",
]
