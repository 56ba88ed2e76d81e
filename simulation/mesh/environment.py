"""What the services take from their process and from the system, in the hand of the simulation for as long as it runs.

Purpose: clocks tell virtual time, chance comes from the seed, gRPC's Cython is the in-memory one, threads are not
started. All of it in this one place; the services are not changed.
Invariants: what was replaced is put back. Each node has its own zero of the monotonic clock, and its own time of day.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import random
import sys
import threading
import time
from asyncio import events
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any, Final
from unittest.mock import patch

from router_service.core.routing import replica_links, subsets
from simulation.mesh.channel import SimChannel
from simulation.mesh.cython import cygrpc
from simulation.mesh.loop import NodeLoop, close_generator
from simulation.mesh.network import Network
from simulation.mesh.server import SimServer
from slotmesh.calls.key_hash import PARTITIONS, partition_of
from slotmesh.calls.state_table import StateName
from slotmesh.client.stream import abandoned_calls as recall
from slotmesh.server import reflection

EPOCH_S: Final = 1_800_000_000.0
"""The time of day at which each simulation begins, Unix seconds."""
_PACKAGES: Final = ("slotmesh.", "router_service.", "replica_service.", "controller_service.", "grpc.aio.")

FEW_PARTITIONS: Final = 64
"""Of an endpoint, in place of `PARTITIONS`: to divide those takes longer than all else. More keys share one."""
_FEW_LINKS: Final[Mapping[ModuleType, Mapping[str, float]]] = {
    subsets: {"LEAST_ROUTERS": 1, "LEAST_LINKS": 1},
    replica_links: {"LEAST_LINKS": 1, "MAX_EXTRA": 2, "IDLE_S": 0.5, "LINGER_S": 0.2, "WIDENED_S": 0.5, "POLL_S": 0.05},
}
"""So that routers with subsets link to few of the replicas, which are few, and not for long."""
RECALL_LOOK_S: Final = 0.02
"""In place of `CANCELLED_LOOK_INTERVAL_S`, by which clients look for calls that no task awaits any more: then each
eighth callback would be such a look."""
_CLOSE_TURNS: Final = 20
"""How often coroutines are told to end that do not, or begin others."""

_IS_HEAP_TYPE: Final = 1 << 9

_real_monotonic = time.monotonic


class Surroundings:
    """What differs from node to node."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._timeline = network.timeline
        self.wall_offset_s: dict[str, float] = {}
        """By node: how far its time of day is off."""
        self.pids: dict[str, int] = {}
        """By node: its process id."""

    def monotonic(self) -> float:
        loop, now = NodeLoop.running, self._timeline.now
        return now if loop is None else now + loop.zero

    def time_of_day(self) -> float:
        loop = NodeLoop.running
        offset_s = 0.0 if loop is None else self.wall_offset_s.get(loop.name, 0.0)
        return EPOCH_S + self.network.timeline.now + offset_s

    def pid(self) -> int:
        loop = NodeLoop.running
        return 1 if loop is None else self.pids.get(loop.name, 1)


@contextmanager
def simulated(surroundings: Surroundings) -> Iterator[None]:
    """Within the block the services run on this network and on its timeline."""
    network = surroundings.network
    chance = network.timeline.chance("system")
    before = random.getstate()
    random.seed(f"{network.timeline.seed}/global")
    collects = gc.isenabled()
    gc.disable()
    hooks = sys.get_asyncgen_hooks()
    with ExitStack() as stack:
        enter = stack.enter_context
        for name, function in (
            ("monotonic", surroundings.monotonic),
            ("perf_counter", surroundings.monotonic),
            ("monotonic_ns", lambda: round(surroundings.monotonic() * 1e9)),
            ("time", surroundings.time_of_day),
            ("time_ns", lambda: round(surroundings.time_of_day() * 1e9)),
        ):
            enter(patch.object(time, name, function))
        for each in _functions_with_a_clock():
            defaults = (surroundings.monotonic if it is _real_monotonic else it for it in each.__defaults__ or ())
            enter(patch.object(each, "__defaults__", tuple(defaults)))
        enter(patch.object(os, "urandom", chance.randbytes))
        enter(patch.object(random, "_urandom", chance.randbytes))
        enter(patch.object(os, "getpid", surroundings.pid))
        enter(patch.object(threading, "Thread", _NoThread))
        enter(patch.object(cygrpc, "AioChannel", lambda target, *_: _channel(network, target)))
        enter(patch.object(cygrpc, "AioServer", lambda *_: SimServer(network, _running())))
        enter(patch.object(reflection, "register", lambda *_: None))
        enter(patch.object(recall, "CANCELLED_LOOK_INTERVAL_S", RECALL_LOOK_S))
        for module in _modules():
            if vars(module).get("PARTITIONS") == PARTITIONS:
                enter(patch.object(module, "PARTITIONS", FEW_PARTITIONS))
        for module, constants in _FEW_LINKS.items():
            for name, value in constants.items():
                enter(patch.object(module, name, value))
        enter(_fresh_caches())
        enter(_numbered_hashes())
        sys.set_asyncgen_hooks(finalizer=close_generator)
        try:
            yield
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            random.setstate(before)
            if collects:
                gc.enable()


def dispose(loops: Iterable[NodeLoop]) -> None:
    """Ends what is left on these loops, quietly: whatever cleans up has nobody to talk to any more.

    Left to the garbage collector, it would do so at any time, and complain.
    """
    before, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        for loop in loops:
            loop.kill()
            events._set_running_loop(loop)
            for _ in range(_CLOSE_TURNS):
                if not (left := loop.left_behind()):
                    break
                for work in left:
                    with suppress(BaseException):
                        work.close()
    finally:
        events._set_running_loop(None)
        sys.unraisablehook = before
        logging.disable(disabled)


def _running() -> NodeLoop:
    if NodeLoop.running is None:
        raise RuntimeError("no node runs")
    return NodeLoop.running


def _channel(network: Network, target: bytes) -> SimChannel:
    return SimChannel(network, target, _running())


class _NoThread:
    """Stands in for `threading.Thread`: what a thread would do once is done on the loop, soon."""

    def __init__(
        self, *, target: Callable[..., object], name: str = "", args: tuple[Any, ...] = (), daemon: bool = False
    ) -> None:
        del daemon
        self.name = name
        self._target = target
        self._args = args

    def start(self) -> None:
        _running().call_soon(self._target, *self._args)


def _modules() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGES) and ".v1." not in name and module is not None:
            yield module


@lru_cache(maxsize=1)
def _classes() -> tuple[type, ...]:
    return tuple(
        value
        for module in _modules()
        for value in list(vars(module).values())
        if isinstance(value, type) and value.__module__ == module.__name__
    )


@lru_cache(maxsize=1)
def _functions_with_a_clock() -> tuple[FunctionType, ...]:
    """Functions that have bound the system's clock as a default of an argument."""
    return tuple(
        function
        for owner in (*_modules(), *_classes())
        for function in list(vars(owner).values())
        if isinstance(function, FunctionType) and _real_monotonic in (function.__defaults__ or ())
    )


@contextmanager
def _fresh_caches() -> Iterator[None]:
    """What was computed with as many partitions as there really are."""
    partition_of.cache_clear()
    try:
        yield
    finally:
        partition_of.cache_clear()


@contextmanager
def _numbered_hashes() -> Iterator[None]:
    """Objects that are hashed by where they lie in memory get numbers instead: sets have the same order every time."""
    known: dict[int, int] = {}
    kept: list[Any] = []  # so that no other object comes to lie there
    numbers = itertools.count(1)

    def number_of(self: Any) -> int:
        try:
            return known[id(self)]
        except KeyError:
            kept.append(self)
            number = known[id(self)] = next(numbers)
            return number

    changed = _classes_with_plain_hashes()
    for each in changed:
        each.__hash__ = number_of  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for each in changed:
            del each.__hash__


def _hash_of(kind: Any) -> Any:
    return kind.__hash__


@lru_cache(maxsize=1)
def _classes_with_plain_hashes() -> tuple[type, ...]:
    return tuple(
        each
        for each in dict.fromkeys((*_classes(), asyncio.Timeout))
        if "__hash__" not in vars(each)
        and _hash_of(each) is object.__hash__
        and each.__flags__ & _IS_HEAP_TYPE
        and not issubclass(each, BaseException | StateName)  # tables of states have these as keys
    )
