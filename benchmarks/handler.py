"""The handler under load: it does nothing, so that what is measured is the mesh."""

from __future__ import annotations

import slotmesh


@slotmesh.deployment
class Echo:
    """Gives back what it got."""

    async def echo(self, payload: bytes) -> bytes:
        return payload
