"""Batches of calls of many keys, as the edge makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from router_service.core.calls import KeyedBatch, RouterCallOptions
from slotmesh.calls.key_hash import partition_of
from slotmesh.streams.chunks import Payload


def keyed_batch(
    options: RouterCallOptions, ids: Sequence[int], payloads: Sequence[Payload], keys: Sequence[str]
) -> KeyedBatch:
    """Calls that share all options but their keys; ids, payloads and keys are parallel."""

    def options_of(key: str) -> RouterCallOptions:
        return replace(options, ordering_key=key, partition=partition_of(key))

    return KeyedBatch(options, ids, payloads, list(keys), list(map(partition_of, keys)), options_of)
