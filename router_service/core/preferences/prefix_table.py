"""Which replicas of one backend hold which blocks of prompts, and the replica where a prompt costs least.

Purpose: a router learns from where it sends calls, as llm-d's approximate prefix scorer and SGLang's router do, and
from what replicas report as evicted. A prompt goes to the replica with the longest known prefix of it that is not
overloaded, unless it is cheaper at the one with the least load. Costs are weighed as in NVIDIA Dynamo's KV router, by
the blocks to compute anew: those of the call, and those of the calls that the replica has, as many as a call has on
average. But here a block costs more where many were placed lately, as it displaces others there. So conversations that
share the beginning of their prompts spread, too, and a hit on most of a prompt wins.
Sources: https://llm-d.ai/docs/architecture/advanced/kv-management/prefix-cache-aware-routing,
https://docs.nvidia.com/dynamo/design-docs/router-design, and the cache-aware policy of
https://pypi.org/project/sglang-router. The bound of the load is that of affinity keys (`affinity.py`).
What is forgotten first: blocks that were used once, as in segmented LRU (Karedla, Love and Wherry, 1994) and S3-FIFO
(Yang et al., 2023, https://jasony.me/publication/sosp23-s3fifo.pdf). So a caller whose prompts have nothing in common
makes the table forget no blocks that others use again. Of both kinds, those that were used longest ago are forgotten
together, half of all at a time.
Invariants: block hashes cover all blocks before them (`slotmesh.calls.prefix_hashes`), so the holders of a prefix are
those that each of its blocks names. At most `most` blocks are kept, and those of one call. A block that was used again
while it was known stays until 3/8 of `most` others were; one that was used once, until `most` / 8 new ones came. A
pick looks at `MAX_TRIED` replicas twice at most. A replica that leaves, or reports that it has lost all, holds nothing
from then on. O(blocks) per call.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

from router_service.core.limits.capacity import KnownReplica

CandidateT = TypeVar("CandidateT", bound=KnownReplica)

BOUND: Final = (5, 4)
"""The load that a replica may have for its prefixes, in shares of the backend's load: a fraction, so it is exact."""
AVERAGED: Final = 64
CROWDED: Final = 4.0
FEW_BLOCKS: Final = 512
"""A replica that was given fewer is not crowded: it has room for them."""
MAX_TRIED: Final = 32
MAX_GONE: Final = 64
"""Numbers of replicas that left, before blocks are forgotten so that they can be given to others."""


class _Holder(Generic[CandidateT]):
    """One replica, and the calls and blocks that it has."""

    __slots__ = ("bit", "earlier", "load", "number", "permits", "placed", "replica")

    def __init__(self, replica: CandidateT, number: int) -> None:
        self.replica = replica
        self.number, self.bit = number, 1 << number
        """In the sets of holders, which are bits of one integer."""
        self.load = self.permits = 0
        """While it takes calls."""
        self.placed = self.earlier = 0
        """Blocks that it did not hold when they were sent to it: since new blocks were last forgotten, and before."""

    @property
    def blocks(self) -> int:
        return self.placed + self.earlier


class PrefixTable(Generic[CandidateT]):
    """Blocks, by replica."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._once: dict[int, int] = {}
        self._once_before: dict[int, int] = {}
        """The holders of each block that was used once, newer ones and older ones: sets as bits."""
        self._again: dict[int, int] = {}
        self._again_before: dict[int, int] = {}
        """The same of those that were used again while they were known. A use makes a block one of `_again`."""
        self._holders: dict[CandidateT, _Holder[CandidateT]] = {}
        self._by_number: dict[int, _Holder[CandidateT]] = {}
        self._listed = 0
        """The set of all."""
        self._open = 0
        """The set of those with room."""
        self._unused: list[int] = []
        self._gone: list[int] = []
        self._gone_before: list[int] = []
        """Numbers that blocks may still name: of replicas that left since blocks were last forgotten, or before."""
        self._load = self._permits = self._placed = 0
        """Sums over all: of calls and permits while they take calls, and of blocks."""
        self._new_blocks = 0.0
        """That a call has to have computed, on average of about the last `AVERAGED` ones."""
        self._next = 0
        """The number of the replica at which the next look at those with room begins."""

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    @property
    def _tables(self) -> tuple[dict[int, int], ...]:
        return self._again, self._once, self._again_before, self._once_before

    def _holders_of(self, block: int) -> int:
        again, once, again_before, once_before = self._tables
        return again.get(block) or once.get(block) or again_before.get(block) or once_before.get(block, 0)

    def changed(self, replica: CandidateT) -> None:
        """The replica's load, capacity or link changed; it may be new, or have left."""
        holder = self._holders.get(replica)
        if not replica.listed:
            if holder is not None:
                self._count(holder, 0, 0)
                self._leave(holder)
            return
        if holder is None:
            if not replica.taking:
                return  # each number makes the sets of all holders longer: those outside the subset have none
            holder = self._join(replica)
        capacity = replica.capacity
        if replica.taking:
            self._count(holder, replica.own + capacity.others, capacity.max_ongoing)
        else:
            self._count(holder, 0, 0)
        if replica.free > 0:
            self._open |= holder.bit
        else:
            self._open &= ~holder.bit

    def pick(self, blocks: Sequence[int], count: int, *, is_known_only: bool = False) -> tuple[CandidateT, int] | None:
        """The replica for `count` calls that begin with these blocks, and how many of them it takes; None: none does.

        Each replica that is not overloaded would compute the blocks behind the longest prefix that it holds.
        `is_known_only`: None if no such replica holds the first block.
        """
        best, known = self._longest(blocks, count)
        fresh = None if best is None and is_known_only else self._least_loaded(count)
        if fresh is None:
            return None
        total = len(blocks)
        if best is None or self._cost(best, total - known) > self._cost(fresh, total):
            best = fresh
        return best.replica, self._room(best, count)

    def suits(self, blocks: Sequence[int], replica: CandidateT) -> bool | None:
        """Whether the replica is one of those with the longest known prefix; None if none is known. O(log blocks)."""
        known, unknown, holders = 0, len(blocks) + 1, 0
        while unknown - known > 1:
            middle = (known + unknown) // 2
            if held := self._holders_of(blocks[middle - 1]) & self._listed:
                known, holders = middle, held
            else:
                unknown = middle
        holder = self._holders.get(replica)
        return None if not known else holder is not None and holders & holder.bit != 0

    def sent(self, blocks: Iterable[int], replica: CandidateT) -> int:
        """A call with these blocks was sent to the replica, which will hold them. Returns how many are new there."""
        holder = self._holders.get(replica)
        if holder is None:
            return 0
        again, once, again_before, once_before = self._tables
        bit, listed, placed = holder.bit, self._listed, 0
        for block in blocks:
            held = again.get(block, 0)
            if held:
                if not held & bit:
                    again[block] = held | bit
                    placed += 1
                continue
            held = once.pop(block, 0) or again_before.pop(block, 0) or once_before.pop(block, 0)
            if not held:
                once[block] = bit
                placed += 1
                continue
            held &= listed
            again[block] = bit if held in (0, bit) else held | bit  # one object for all blocks that only it holds
            placed += not held & bit
        holder.placed += placed
        self._new_blocks += (placed - self._new_blocks) / AVERAGED
        self._placed += placed
        self._trim()
        return placed

    def evicted(self, blocks: Iterable[int], replica: CandidateT) -> None:
        """The replica reports that it holds these blocks no longer."""
        holder = self._holders.get(replica)
        if holder is None:
            return
        for block in blocks:
            for table in self._tables:
                held = table.get(block, 0)
                if held & holder.bit:
                    if held == holder.bit:
                        del table[block]
                    else:
                        table[block] = held & ~holder.bit

    def all_evicted(self, replica: CandidateT) -> None:
        """The replica reports that it holds nothing: under a number of its own, no block names it."""
        holder = self._holders.get(replica)
        if holder is not None:
            self._count(holder, 0, 0)
            self._leave(holder)
            self.changed(replica)

    def _longest(self, blocks: Sequence[int], count: int) -> tuple[_Holder[CandidateT] | None, int]:
        """The least loaded of those that hold the longest prefix and are not overloaded, and the prefix's blocks."""
        again, once, again_before, once_before = self._tables
        held = self._listed
        levels: list[tuple[int, int]] = []
        """Prefixes that fewer replicas hold than a shorter one: blocks, and the replicas that hold no longer one."""
        for known, block in enumerate(blocks):
            found = again.get(block) or once.get(block) or again_before.get(block) or once_before.get(block, 0)
            longer = held & found
            if longer != held:
                if known:
                    levels.append((known, held & ~longer & self._open))
                if not longer:
                    break
                held = longer
        else:
            levels.append((len(blocks), held & self._open))
        left = MAX_TRIED
        for known, holders in reversed(levels):
            best: _Holder[CandidateT] | None = None
            members = holders
            while members and left:
                bit = members & -members
                members ^= bit
                left -= 1
                holder = self._by_number[bit.bit_length() - 1]
                is_better = best is None or (holder.load, holder.blocks) < (best.load, best.blocks)
                if is_better and self._room(holder, count) > 0:
                    best = holder
            if best is not None:
                return best, known
        return None, 0

    def _least_loaded(self, count: int) -> _Holder[CandidateT] | None:
        """The one with the least load, then with the fewest blocks, of some with room; the next time of the next."""
        best: _Holder[CandidateT] | None = None
        members = self._open >> self._next << self._next
        others = self._open ^ members
        for _ in range(MAX_TRIED):
            if not members:
                members, others = others, 0
            if not members:
                break
            bit = members & -members
            members ^= bit
            holder = self._by_number[bit.bit_length() - 1]
            is_better = best is None or (holder.load, holder.blocks) < (best.load, best.blocks)
            if is_better and self._room(holder, count) > 0:
                best = holder
        self._next = (members & -members).bit_length() - 1 if members else 0
        return best

    def _room(self, holder: _Holder[CandidateT], count: int) -> int:
        """Calls that it takes until it is overloaded, when `count` more have been sent."""
        times, parts = BOUND
        permits = holder.permits
        share = -(-times * (self._load + count) * permits // (parts * self._permits)) if permits else 0
        return min(holder.replica.free, count, max(share, (permits + 1) // 2) - holder.load)

    def _cost(self, holder: _Holder[CandidateT], new: int) -> float:
        """Of a call with `new` blocks to compute, behind the calls that the replica has.

        A block costs `CROWDED` times as much for each mean of the blocks placed that was placed there: enough for a
        prefix that all prompts share not to keep them at a few replicas.
        """
        mean = self._placed / len(self._holders)
        displaced = (holder.blocks + FEW_BLOCKS) / (mean + FEW_BLOCKS)
        weight: float = CROWDED**displaced
        return new * weight + holder.load * self._new_blocks

    def _count(self, holder: _Holder[CandidateT], load: int, permits: int) -> None:
        self._load += load - holder.load
        self._permits += permits - holder.permits
        holder.load, holder.permits = load, permits

    def _join(self, replica: CandidateT) -> _Holder[CandidateT]:
        number = self._unused.pop() if self._unused else len(self._by_number) + len(self._gone) + len(self._gone_before)
        holder = self._holders[replica] = self._by_number[number] = _Holder(replica, number)
        self._listed |= holder.bit
        return holder

    def _leave(self, holder: _Holder[CandidateT]) -> None:
        del self._holders[holder.replica]
        del self._by_number[holder.number]
        self._listed &= ~holder.bit
        self._open &= ~holder.bit
        self._placed -= holder.blocks
        self._gone.append(holder.number)
        if len(self._gone) >= MAX_GONE:
            self._forget()

    def _trim(self) -> None:
        """Forgets blocks if there are more than are to be kept."""
        most = self._most
        if 8 * len(self._again) >= 3 * most:
            self._again, self._again_before = {}, self._again
        left = most - len(self._again) - len(self._again_before)
        if 2 * len(self._once) >= left or len(self) > most:
            self._forget_once()

    def _forget_once(self) -> None:
        """Forgets the older half of the blocks that were used once."""
        self._once, self._once_before = {}, self._once
        for holder in self._holders.values():
            self._placed -= holder.earlier
            holder.placed, holder.earlier = 0, holder.placed

    def _forget(self) -> None:
        """Forgets the older half of all blocks; numbers that were gone when this was done last are free."""
        self._again, self._again_before = {}, self._again
        self._forget_once()
        self._unused += self._gone_before
        self._gone, self._gone_before = [], self._gone
