"""Ordering key -> partition: the one hash that all clients and services agree on. Keys, models -> places on rings.

Invariant: the same key maps to the same partition in every process and release; it is part of the wire contract.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

PARTITIONS = 4096
"""Partitions of each endpoint."""


@lru_cache(maxsize=65_536)
def partition_of(ordering_key: str) -> int:
    """Partition of an ordering key, 0 … 4095: blake2b (8 bytes, big endian) of the UTF-8 key, modulo 4,096."""
    return int.from_bytes(blake2b(ordering_key.encode(), digest_size=8).digest(), "big") % PARTITIONS


def place_of_key(affinity_key: str) -> int:
    """The place of an affinity key on a ring of replicas, 0 … 2^64 - 1: blake2b (8 bytes, big endian) of the key.

    The same at every router, which is all that counts: clients do not need it.
    """
    return int.from_bytes(blake2b(affinity_key.encode(), digest_size=8, person=b"slotmesh.affin").digest(), "big")


def place_of_model(model_id: str) -> int:
    """The place of a model, as that of an affinity key."""
    return int.from_bytes(blake2b(model_id.encode(), digest_size=8, person=b"slotmesh.models").digest(), "big")
