"""Direct lanes: calls to replicas themselves, one after another in slots that the client holds."""

from slotmesh.client.direct.direct_method import DirectMethod
from slotmesh.client.direct.lanes import DirectLanes

__all__ = ["DirectLanes", "DirectMethod"]
