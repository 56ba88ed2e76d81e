"""The handler of the hops: says when it began."""

from __future__ import annotations

import slotmesh
from benchmarks import hop_stamps


@slotmesh.deployment
class StampedEcho:
    """Gives back what it got."""

    async def echo(self, payload: bytes) -> bytes:
        hop_stamps.recorder.stamp(hop_stamps.HANDLER_BEGINS)
        return payload
