"""A lease in etcd that this process keeps alive: what is bound to it is there for as long as the process runs.

Invariants: it is prolonged three times within its time to live. A lease that has lapsed stays lapsed; one that could
not be prolonged for a while may still be there, and etcd decides.
Owner: the store, or a standby.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Final, Self

from controller_service.store.etcd.client import EtcdClient, EtcdFailed

TTL_S: Final = 3
"""etcd deletes what is bound to a lease this long after it was prolonged last, and within a further second."""
KEEP_S: Final = 1.0
_RETRY_S: Final = 0.2


class EtcdLease:
    """One lease, which is kept alive until it is released."""

    def __init__(self, client: EtcdClient, identity: int) -> None:
        self.identity: Final = identity
        self.has_lapsed = False
        """etcd has no such lease any more."""
        self._client = client
        self._keeping = asyncio.create_task(self._keep(), name="etcd-lease")

    @classmethod
    async def grant(cls, client: EtcdClient) -> Self:
        """Raises EtcdFailed."""
        return cls(client, await client.grant(TTL_S))

    async def _keep(self) -> None:
        wait_s = KEEP_S
        while not self.has_lapsed:
            await asyncio.sleep(wait_s)
            try:
                self.has_lapsed = not await self._client.keep_alive(self.identity, KEEP_S)
                wait_s = KEEP_S
            except EtcdFailed:  # the store reports it
                wait_s = _RETRY_S

    async def release(self) -> None:
        """Deletes what is bound to it, if etcd answers; otherwise that ends with the time to live."""
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        if not self.has_lapsed:
            with suppress(EtcdFailed):
                await self._client.revoke(self.identity)


def process_name() -> str:
    """Of this process, for people."""
    return f"{socket.gethostname()}, pid {os.getpid()}"
