"""Which backend a shard key belongs to: weighted rendezvous hashing.

Purpose: every router, at every start, sends a key to the same backend, and routers exchange no messages for that.
Invariants: the same key, weights and names give the same backend. A key moves only to a backend whose weight grew, or
away from one whose weight shrank; where one backend grows at the cost of the others alike, only to it, and no more keys
than its weight says.
Source: Schindelhauer and Schomaker, Weighted Distributed Hash Tables (2005), the logarithmic method.
Owner: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from math import inf, log

_SEED = b"slotmesh.shard"
"""Part of the contract: another one moves every key."""
_SCALE = 2.0**-53


def choose(key: str, weights: Mapping[str, float]) -> str:
    """The backend of the key; `weights` has one positive weight at least."""
    data = key.encode()
    best, lowest = "", inf
    for name, weight in weights.items():
        if weight <= 0.0:
            continue
        digest = blake2b(data, digest_size=8, key=name.encode(), person=_SEED).digest()
        uniform = ((int.from_bytes(digest, "big") >> 11) + 0.5) * _SCALE
        cost = -log(uniform) / weight
        if cost < lowest or (cost == lowest and name < best):
            best, lowest = name, cost
    return best
