"""A lease in etcd that this process keeps alive: what is bound to it is there for as long as the process runs.

Invariants: it is prolonged three times within its time to live. A lease that has lapsed stays lapsed; one that could
not be prolonged for a while may still be there, and etcd decides.
An election of etcd prolongs all leases, by a second beyond their time to live, also those of processes that have ended.
So a controller that leads notes each election with its key, and a standby deletes the key of one that does not
(`Elections`). As with a lease that lapses, a controller that leads nevertheless is fenced: that key is another one.
Owner: the store, or a standby.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self

from controller_service.store.etcd.client import LOOK_S, EtcdClient, EtcdFailed
from controller_service.store.etcd.operations import Get, Is, Put

TTL_S: Final = 3
"""etcd deletes what is bound to a lease this long after it was prolonged last, and within a further second."""
KEEP_S: Final = 1.0
_RETRY_S: Final = 0.2
NOTED_WITHIN_S: Final = 2.0
"""After an election, a controller that leads has noted it: it looks twice a second, and leaves a member that hangs
after a second."""


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


class Elections:
    """Whether a leading controller should have noted the newest election of etcd, and has not."""

    def __init__(self) -> None:
        self._newest = 0
        self._since = 0.0

    def is_overdue(self, noted: int, newest: int, now: float) -> bool:
        """`noted`: by the leading controller; 0: it notes none, as an older version. `newest`: that etcd reports."""
        if not 0 < noted < newest:
            self._newest = 0
            return False
        if newest != self._newest:
            self._newest, self._since = newest, now
        return now >= self._since + NOTED_WITHIN_S


async def with_note(
    client: EtcdClient, held: Sequence[Is], lease: int, note: Callable[[], bytes], noted: bytes
) -> bytes:
    """What the key of the leader contains after this: `note`, which has the newest election, if `held` is true.

    Raises EtcdFailed.
    """
    key = held[0].key
    is_held = (await client.txn(held, [Get(key)], within_s=LOOK_S)).is_met
    if not is_held or (content := note()) == noted:
        return noted
    return content if (await client.txn(held, [Put(key, content, lease)], within_s=LOOK_S)).is_met else noted


def process_name() -> str:
    """Of this process, for people."""
    return f"{socket.gethostname()}, pid {os.getpid()}"
