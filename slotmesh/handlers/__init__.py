"""What makes a class or a function a handler: `@deployment`, `@batch`, and how a replica reads them.

The modules are loaded when one of their names is first asked for: what only needs the bounds of `settings` does not pay
for the codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotmesh.later_imports import later

if TYPE_CHECKING:
    from slotmesh.handlers.batch_settings import BatchControl, BatchState, RunningBatch
    from slotmesh.handlers.decorators import batch, batch_control, deployment, whole_batches
    from slotmesh.handlers.description import CALL, HandlerDescription, MethodDescription, describe
    from slotmesh.handlers.kinds import MethodKind
    from slotmesh.spec.handler_settings import BatchSettings, DeploymentSettings

__getattr__ = later(
    __name__,
    {
        "slotmesh.handlers.batch_settings": ("BatchControl", "BatchState", "RunningBatch"),
        "slotmesh.handlers.decorators": ("batch", "batch_control", "deployment", "whole_batches"),
        "slotmesh.handlers.description": ("CALL", "HandlerDescription", "MethodDescription", "describe"),
        "slotmesh.handlers.kinds": ("MethodKind",),
        "slotmesh.spec.handler_settings": ("BatchSettings", "DeploymentSettings"),
    },
)

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
