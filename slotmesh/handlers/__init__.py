"""What makes a class or a function a handler: `@deployment`, `@batch`, and how a replica reads them.

The modules are loaded when one of their names is first asked for: what only needs the bounds of `settings` does not pay
for the codec.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotmesh.handlers.batch_settings import BatchControl, BatchState, RunningBatch
    from slotmesh.handlers.decorators import batch, batch_control, deployment, whole_batches
    from slotmesh.handlers.description import CALL, HandlerDescription, MethodDescription, describe
    from slotmesh.handlers.kinds import MethodKind
    from slotmesh.spec.handler_settings import BatchSettings, DeploymentSettings

_LATER = {
    "BatchControl": "slotmesh.handlers.batch_settings",
    "BatchSettings": "slotmesh.spec.handler_settings",
    "BatchState": "slotmesh.handlers.batch_settings",
    "CALL": "slotmesh.handlers.description",
    "DeploymentSettings": "slotmesh.spec.handler_settings",
    "HandlerDescription": "slotmesh.handlers.description",
    "MethodDescription": "slotmesh.handlers.description",
    "MethodKind": "slotmesh.handlers.kinds",
    "RunningBatch": "slotmesh.handlers.batch_settings",
    "batch": "slotmesh.handlers.decorators",
    "batch_control": "slotmesh.handlers.decorators",
    "deployment": "slotmesh.handlers.decorators",
    "describe": "slotmesh.handlers.description",
    "whole_batches": "slotmesh.handlers.decorators",
}

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


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
