"""Reads what etcd has: a state as a whole, and what became of a write whose response does not say.

Owner: none; functions over a connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from controller_service.store.etcd.client import EtcdClient, EtcdFailed
from controller_service.store.etcd.layout import KeySnapshot, Layout, StoredHead, read_head
from controller_service.store.etcd.operations import Get
from controller_service.store.forms import BadDocument
from controller_service.store.rows import DamagedRows, Head


async def read_snapshot(client: EtcdClient, keys: Layout) -> KeySnapshot:
    """Raises EtcdFailed, DamagedRows, BadDocument."""
    _, found = await client.read(keys.prefix)
    return await asyncio.to_thread(keys.snapshot, found)  # it may take seconds: a lease is kept alive meanwhile


async def has_generation(client: EtcdClient, keys: Layout, generation: str) -> bool:
    """False also if that cannot be read."""
    with suppress(EtcdFailed, DamagedRows, BadDocument):
        for head in (await client.txn([], [Get(keys.head)])).found[0]:
            return read_head(head.value).head.generation == generation
    return False


async def revision_if_written(
    client: EtcdClient, keys: Layout, stored: StoredHead, before: int, failed: EtcdFailed
) -> int:
    """The revision that wrote this head, though etcd refused it: one that becomes full with a write carries it out.

    `before`: the revision that had written the head until then. Raises EtcdFailed.
    """
    try:
        heads = (await client.txn([], [Get(keys.head)])).found[0]
    except EtcdFailed:
        raise failed from None
    if (heads[0].modified if heads else 0) == before:
        raise EtcdFailed(str(failed), is_unwritten=True, is_refused=True) from failed
    if heads and heads[0].value == stored.encoded():
        return heads[0].modified
    raise failed


def why_not_own(found: Head, before: Head) -> str:
    """Why a leader whose head was `before` cannot have written the head that etcd has; empty if it can."""
    if (found.generation, found.term) != (before.generation, before.term):
        return "was taken over by another controller"
    if found.revision < before.revision:
        went = f"went back from revision {before.revision} to {found.revision}"
        return f"{went}, as with a backup of etcd that is restored: start this controller again"
    return ""
