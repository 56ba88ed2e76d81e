"""Subsets: which replicas each of many routers links to, so that no router has to link to all.

Purpose: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016). Each replica goes clockwise
from its place on a ring of routers to the next ones that are not full, so that a replica or router that joins or leaves
moves few others. All routers compute the same division from the same table, and each takes its own share.
Invariants: each replica has exactly `copies` routers, or all if there are fewer; no router has more than its even
share, rounded up. The result depends on the sets only, not on the order of arguments. Routers with different tables
differ in few replicas, and nothing but evenness depends on it.
Owner: pure functions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final

LEAST_ROUTERS: Final = 2
"""Routers of each replica, so that it has work when one of them ends."""
LEAST_LINKS: Final = 3
"""Links of each router to each backend, or to all of its replicas if they are fewer."""
_PLACES: Final = 64
"""Places of each router on the ring."""


def copies_of(routers: int, replicas: Mapping[str, int], size: int) -> dict[str, int]:
    """Number of routers that link to each replica of a backend, where each router should have `size` links in all.

    `replicas`: their number by backend. All routers link to all replicas where that takes no more than `size` links, or
    where `size` is 0.
    """
    total = sum(replicas.values())
    if not size or total <= size or routers < 1:
        return dict.fromkeys(replicas, max(1, routers))
    even = max(LEAST_ROUTERS, size * routers // total)
    return {
        name: min(routers, max(even, -(-min(LEAST_LINKS, count) * routers // count))) if count else routers
        for name, count in replicas.items()
    }


def divided(routers: Iterable[str], replicas: Iterable[str], copies: int) -> dict[str, set[str]]:
    """The replicas of each router."""
    names = sorted({*routers})
    shares: dict[str, set[str]] = {name: set() for name in names}
    placed = sorted([(place_of(each), each) for each in {*replicas}])
    ordered = [each for _, each in placed]
    if copies >= len(names):
        for share in shares.values():
            share.update(ordered)
        return shares
    room = -(-copies * len(ordered) // len(names))
    ring = sorted((place_of(f"{name} {number}"), name) for name in names for number in range(_PLACES))
    places, number_of = [place for place, _ in ring], {name: at for at, name in enumerate(names)}
    owners, members = [number_of[name] for _, name in ring], [shares[name] for name in names]
    left = [room] * len(names)
    """For how many more replicas each router has room."""
    open_routers = len(names) if room else 0
    following = [*range(1, len(ring)), 0]
    """By place on the ring, one at or behind which the next router with room may be: full ones are passed over."""
    short: list[str] = []
    for place, replica in placed:
        most = min(copies, open_routers)
        found = _with_room(bisect_left(places, place) % len(ring), owners, following, left, most) if most else []
        for owner in found:
            members[owner].add(replica)
            left[owner] -= 1
            open_routers -= not left[owner]
        if len(found) < copies:
            short += [replica] * (copies - len(found))
    for replica in short:
        _exchange(replica, shares, room)
    return shares


def _with_room(at: int, owners: list[int], following: list[int], left: list[int], most: int) -> list[int]:
    """The first `most` routers from this place on that have room: there are that many."""
    found: list[int] = []
    passed: list[int] = []
    for _ in range(len(owners)):
        owner = owners[at]
        if left[owner] > 0:
            for each in passed:
                following[each] = at
            passed.clear()
            if owner not in found:
                found.append(owner)
                if len(found) == most:
                    break
            at = (at + 1) % len(owners)
        else:
            passed.append(at)
            at = following[at]
    return found


def _exchange(replica: str, shares: dict[str, set[str]], room: int) -> None:
    """The only routers with room have the replica: one of them takes another replica from a router that has not."""
    for name, share in shares.items():
        if len(share) >= room:
            continue
        for theirs in shares.values():
            if replica in theirs:
                continue
            if len(theirs) < room:
                theirs.add(replica)
                return
            if spare := theirs - share:
                moved = min(spare)
                theirs.remove(moved)
                share.add(moved)
                theirs.add(replica)
                return
        raise AssertionError(f"router {name} has every replica")


@lru_cache(maxsize=1 << 17)
def place_of(name: str) -> int:
    """The place of a name on the ring: even over all places, and the same everywhere."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
