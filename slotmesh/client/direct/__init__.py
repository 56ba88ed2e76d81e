"""Direct lanes: calls to replicas themselves, one after another in slots that the client holds."""

from slotmesh.client.direct.lanes import DirectLanes, DirectMethod

__all__ = ["DirectLanes", "DirectMethod"]
