"""Rpcs that have been taken in begin in turn: round the connections that they have come by, and some at a time.

Purpose: a server is to take rpcs in as quickly as they come, since until then all stand in one queue of gRPC's core,
the one call of somebody behind ten thousand of somebody else. To begin all of them at once would make for long turns of
the event loop, so few begin in each; a connection waits for one rpc of each other connection, however many these have.
Invariants: the rpcs of one connection begin in the order in which they have come. Where few come, each begins at once.
What waits is bounded, and even then one of each connection may: nobody's flood keeps others out.
Owner: the accepting server, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

RpcT = TypeVar("RpcT")

IN_A_TURN: Final = 8
"""So many begin in one turn of the event loop: about a millisecond of what follows."""


class FairStarts(Generic[RpcT]):
    """Of one server."""

    def __init__(self, start: Callable[[RpcT], None], peer_of: Callable[[RpcT], str], most: int) -> None:
        """`start` begins an rpc and raises nothing; `peer_of` names its connection. `most`: see `add`."""
        self._start = start
        self._peer_of = peer_of
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._waiting: OrderedDict[str, deque[RpcT]] = OrderedDict()
        """By connection, each with one at least; whose turn is next comes first."""
        self._count = 0
        self._left = IN_A_TURN
        """How many may still begin in this turn."""
        self._has_next_turn = False

    def __len__(self) -> int:
        return self._count

    def add(self, rpc: RpcT) -> None:
        """It begins now, if no other waits and few have begun; else when it is its turn.

        Where `most` wait, and one of its connection among them, it is let go, and never begins.
        """
        if not self._has_next_turn:
            self._has_next_turn = True
            self._loop.call_soon(self._turn)
        if self._left:  # then none waits
            self._left -= 1
            self._start(rpc)
            return
        peer = self._peer_of(rpc)
        if self._count >= self._most and peer in self._waiting:
            return
        self._waiting.setdefault(peer, deque()).append(rpc)
        self._count += 1

    def begin_by(self, start: Callable[[RpcT], None]) -> None:
        """From now on they begin by this."""
        self._start = start

    def _turn(self) -> None:
        for begun in range(IN_A_TURN):
            if not self._waiting:
                self._left = IN_A_TURN - begun
                break
            peer, rpcs = self._waiting.popitem(last=False)
            rpc = rpcs.popleft()
            if rpcs:
                self._waiting[peer] = rpcs
            self._count -= 1
            self._start(rpc)
        else:
            self._left = 0
        # Another turn follows as long as one is used: the one after that gives what has begun in it back.
        self._has_next_turn = self._left < IN_A_TURN
        if self._has_next_turn:
            self._loop.call_soon(self._turn)
