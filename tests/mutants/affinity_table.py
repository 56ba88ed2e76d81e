"""Mutants of affinity keys: which replica gets a key's calls, up to which load, and how they are counted."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

ROUTER: Final = "router_service/core/preferences"
KEYS: Final = "tests/unit/router/preferences/test_affinity.py"

AFFINITY: Final = (
    mutant(
        "the bound does not count the calls that are about to be sent",
        ROUTER,
        "(self._load + count) * permits // (parts * self._permits))\n",
        "self._load * permits // (parts * self._permits))\n",
        f"{KEYS} tests/properties/test_affinity.py",
    ),
    mutant(
        "half of an odd number of permits is less than half",
        ROUTER,
        "return min(permits, max(share, (permits + 1) // 2))",
        "return min(permits, max(share, permits // 2))",
        KEYS,
    ),
    mutant(
        "the last place of a sector has no keys",
        ROUTER,
        "islice(self._sectors[number], at, None)",
        "islice(self._sectors[number], at, len(self._sectors[number]) - 1)",
        KEYS,
    ),
    mutant(
        "replicas that have left stay on the ring",
        ROUTER,
        "is_member=replica.listed and not replica.draining",
        "is_member=True",
        "tests/properties/test_affinity.py",
    ),
    mutant("a lookup tries all replicas that are full", ROUTER, "tried += 1", "tried += 0", KEYS),
    mutant(
        "more replicas than are added at once are not all on the ring",
        ROUTER,
        "self._has_changed = len(gone) > MAX_CHANGED or len(new) > MAX_CHANGED",
        "self._has_changed = len(gone) > MAX_CHANGED",
        KEYS,
    ),
    mutant(
        "a call that its key's replica gets counts as spilled while another one is not linked",
        ROUTER,
        "found = next(filter(takes, islice(self.follow(place), MAX_PASSED)), None)",
        "found = next(islice(self.follow(place), MAX_PASSED), None)",
        KEYS,
    ),
    mutant(
        "a replica in place of another gets keys of all others",
        ROUTER,
        "return replica.replica_id if replica.rank is None else",
        "return replica.replica_id if True else",
        KEYS,
    ),
    mutant(
        "of two replicas with one rank, each router prefers the one that it met first",
        ROUTER,
        "replica, key=lambda each: each.key)",
        "replica, key=lambda each: 0)",
        KEYS,
    ),
    mutant(
        "a replica that takes no calls any more is the first one of its keys",
        ROUTER,
        "if self._has_changed or takes(replica) is not (replica in self._loads):",
        "if self._has_changed:",
        f"{KEYS} tests/properties/test_affinity.py",
    ),
    mutant(
        "a replica that takes no calls any more still is one of the first of its models",
        ROUTER,
        "            self._around.clear()\n        load, permits",
        "        load, permits",
        f"{KEYS} tests/properties/test_affinity.py",
    ),
    mutant(
        "a rank that is learned later moves no keys",
        ROUTER,
        "        if name == before:\n",
        "        if (name is None) == (before is None):\n",
        f"{KEYS} tests/properties/test_affinity.py",
    ),
    mutant(
        "links for affinity keys take the room of links that calls need",
        "router_service/core/routing",
        "len(self._extra) < MAX_EXTRA // 2",
        "len(self._extra) < MAX_EXTRA",
        KEYS,
    ),
    mutant(
        "a key does not decide the backend",
        "router_service/core/lifecycle",
        "if key := run.options.shard_key or run.options.affinity_key:",
        "if key := run.options.shard_key:",
        KEYS,
    ),
)
