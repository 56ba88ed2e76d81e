"""The network between simulated processes: connections, and what can happen to them.

Purpose: bytes arrive in order, late, or not at all. What can be done to a way (one direction of all
connections between two nodes): it stalls and goes on, it gets slow. What can be done to a pair of nodes: connections
are reset.
What is left of a node that died: a part of what it had written last, then the end of its connections.
Invariants: on one connection nothing overtakes, and nothing arrives after its end; what a dead or a paused node would
have to do is not done. A side that hears nothing for the time of the keepalive ends the connection for itself alone.
Owner: the world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from simulation.mesh.loop import Handle, NodeLoop
from simulation.mesh.timeline import Timeline

KEEPALIVE_S: Final = (5.0, 15.0)
"""When a side notices that the other one does not answer: the ping of an idle connection leaves after 10 s at most, and
is waited for 5 s."""
BYTES_PER_S: Final = 200e6
CONNECT_TIMEOUT_S: Final = 0.1


class Way:
    """From one node to another."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        self.network = network
        self.source = source
        self.target = target
        self.chance = network.timeline.chance(f"way {source} {target}")
        self.latency_s = self.chance.choice((0.00005, 0.0002, 0.0002, 0.001, 0.004))
        self.extra_s = 0.0
        """More delay, as long as that lasts."""
        self.is_stalled = False
        self.stalled_since = 0.0

    def delay_s(self, size: int) -> float:
        jitter = self.chance.random()
        return (self.latency_s + self.extra_s) * (1.0 + jitter * jitter) + size / BYTES_PER_S


class SimulatedPipe:
    """One direction of one connection."""

    def __init__(self, connection: SimulatedConnection, way: Way, target: NodeLoop) -> None:
        self.way = way
        self._timeline = way.network.timeline
        self._target = target
        self._connection = connection
        self._arrives_at = 0.0
        self._cut_at: float | None = None
        self._held: deque[Handle] = deque()
        self._is_closed = False

    def send(self, size: int, happen: Callable[..., object], *args: Any) -> None:
        """Calls `happen` in the process at the other end, when this arrives."""
        if not self._is_closed:
            self._start(size, self._target.handle(happen, args))

    def _start(self, size: int, what: Handle) -> None:
        self._arrives_at = max(self._arrives_at, self._timeline.now + self.way.delay_s(size))
        self._timeline.at(self._arrives_at, self._arrive, what)

    def _arrive(self, what: Handle) -> None:
        if self._cut_at is not None and self._timeline.now > self._cut_at:
            return
        if self.way.is_stalled or self._held:
            self._held.append(what)
        else:
            self._target.take(what)

    def flow(self) -> None:
        """The way does not stall any more."""
        held, self._held = self._held, deque()
        for what in held:  # at once: what is on its way behind them arrives later
            self._target.take(what)

    def end(self, happen: Callable[..., object], *args: Any, lost: float = 0.0) -> None:
        """Nothing more comes after this. `lost`: of what is on its way, this share does not arrive."""
        if self._is_closed:
            return
        now = self._timeline.now
        if lost and self._arrives_at > now:
            self._cut_at = now + (self._arrives_at - now) * (1.0 - lost)
            for _ in range(int(len(self._held) * lost)):
                self._held.pop()
        what = self._target.handle(happen, args)
        if self._cut_at is not None:
            self._arrives_at = self._cut_at
            self._cut_at = None
            self._timeline.at(self._arrives_at, self._end_arrives, what)
        else:
            self._start(0, what)
        self._is_closed = True

    def _end_arrives(self, what: Handle) -> None:
        self._cut_at = -1.0
        if self.way.is_stalled or self._held:
            self._held.append(what)
            self._cut_at = None
        else:
            self._target.take(what)

    def drop(self) -> None:
        """What is on its way goes nowhere."""
        self._is_closed = True
        self._cut_at = -1.0
        self._held.clear()


class ConnectionEnd:
    """One end of a connection, in its process."""

    def __init__(self, connection: SimulatedConnection, loop: NodeLoop) -> None:
        self.loop = loop
        self.is_open = True
        self._connection = connection
        self.on_end: Callable[[str], None] = lambda _why: None
        """Called in the process: the connection is no more."""

    def ended(self, why: str) -> None:
        if self.is_open:
            self.is_open = False
            self._connection.network.forget_if_over(self._connection)
            self.on_end(why)


class SimulatedConnection:
    """Between a process that has connected and one that listens."""

    def __init__(self, network: Network, client: NodeLoop, server: NodeLoop) -> None:
        self.network = network
        self.near, self.far = ConnectionEnd(self, client), ConnectionEnd(self, server)
        self.out = SimulatedPipe(self, network.way(client.name, server.name), server)
        """What the client says."""
        self.back = SimulatedPipe(self, network.way(server.name, client.name), client)
        """What the server says."""
        self.accept: Callable[..., None] = _nobody
        """Called at the server with the first frame of each rpc."""
        self.goes_away: Callable[[SimulatedConnection], None] = _nobody
        """Called at the client when the server stops."""

    def sides(
        self,
    ) -> tuple[tuple[ConnectionEnd, SimulatedPipe, ConnectionEnd], tuple[ConnectionEnd, SimulatedPipe, ConnectionEnd]]:
        """Each end, what it says, and the other end."""
        return (self.near, self.out, self.far), (self.far, self.back, self.near)

    def close(self, end: ConnectionEnd, why: str) -> None:
        """One side ends the connection; the other one hears of it when all before has arrived."""
        for own, pipe, other in self.sides():
            if own is end:
                own.is_open = False
                pipe.end(other.ended, why)
        self.network.forget_if_over(self)

    def reset(self, why: str, *, lost: float) -> None:
        """Somebody between the two ends it."""
        for _, pipe, other in self.sides():
            pipe.end(other.ended, why, lost=lost)

    def died(self, loop: NodeLoop, lost: float) -> None:
        """The process of one side is no more."""
        for own, pipe, other in self.sides():
            if own.loop is loop:
                own.is_open = False
                pipe.end(other.ended, "Socket closed", lost=lost)
        self.network.forget_if_over(self)

    def time_out(self, end: ConnectionEnd) -> None:
        """A side has heard nothing for too long."""
        if end.is_open and not end.loop.is_dead:
            end.loop.deliver(self._timed_out, end)

    def _timed_out(self, end: ConnectionEnd) -> None:
        if end.is_open:
            self.close(end, "Socket closed")
            end.on_end("keepalive watchdog timeout")


def _nobody(*_: object) -> None:
    """Nobody is there yet."""


class Listener(NamedTuple):
    """Who listens at an address."""

    loop: NodeLoop
    accept: Callable[[SimulatedConnection], None]
    """Called in its process."""


class Network:
    """All ways and all connections."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.listeners: dict[str, Listener] = {}
        self.connections: dict[SimulatedConnection, None] = {}
        self.on_message: Callable[[str, str, str, bytes], None] = lambda *_: None
        """Each message as it is about to be read at the other end: from, to, rpc, bytes. Faults wait for moments."""
        self._ways: dict[tuple[str, str], Way] = {}
        self._chance = timeline.chance("network")

    def way(self, source: str, target: str) -> Way:
        found = self._ways.get((source, target))
        if found is None:
            found = self._ways[source, target] = Way(self, source, target)
        return found

    # -- what processes do -----------------------------------------------------------------------------------------

    def connect(self, loop: NodeLoop, address: str, done: Callable[[SimulatedConnection | None, str], None]) -> None:
        """`done` is called in the process of `loop`: with the connection, or with why there is none."""
        listener = self.listeners.get(address)
        if listener is None or listener.loop.is_dead:
            # The machine is there and says no; ways to nobody are not simulated.
            self.timeline.at(self.timeline.now + 0.0003, lambda _: loop.deliver(done, None, "Connection refused"))
            return
        connection = SimulatedConnection(self, loop, listener.loop)
        self.connections[connection] = None
        state = {"is_waiting": True}

        def answered() -> None:
            if state["is_waiting"]:
                state["is_waiting"] = False
                done(connection, "")
            else:
                connection.close(connection.near, "Socket closed")

        def late(_: None) -> None:
            loop.deliver(given_up)

        def given_up() -> None:
            if state["is_waiting"]:
                state["is_waiting"] = False
                connection.close(connection.near, "Socket closed")
                done(None, "connection attempt timed out")

        def refused(_why: str) -> None:
            if state["is_waiting"]:
                state["is_waiting"] = False
                done(None, "Connection refused")

        def arrived() -> None:
            current = self.listeners.get(address)
            if current is None or current.loop is not connection.far.loop:
                connection.close(connection.far, "Connection refused")
                return
            current.accept(connection)
            connection.back.send(64, answered)

        connection.near.on_end = refused
        connection.out.send(64, arrived)
        self.timeline.at(
            self.timeline.now + CONNECT_TIMEOUT_S + 4 * self.way(loop.name, listener.loop.name).extra_s, late
        )

    def forget_if_over(self, connection: SimulatedConnection) -> None:
        if not connection.near.is_open and not connection.far.is_open:
            self.connections.pop(connection, None)

    # -- what befalls them -----------------------------------------------------------------------------------------

    def stall(self, source: str, target: str) -> None:
        """Nothing arrives any more from the one at the other."""
        way = self.way(source, target)
        if way.is_stalled:
            return
        way.is_stalled, way.stalled_since = True, self.timeline.now
        for connection in self._between(source, target):
            self._watch(connection, lambda: way.is_stalled, connection.near, connection.far)

    def heal(self, source: str, target: str) -> None:
        """What was held up goes on its way."""
        way = self.way(source, target)
        way.is_stalled = False
        for connection in self._between(source, target):
            for _, pipe, _ in connection.sides():
                if pipe.way is way:
                    pipe.flow()

    def heal_both(self, one: str, other: str) -> None:
        self.heal(one, other)
        self.heal(other, one)

    def slow(self, source: str, target: str, extra_s: float) -> None:
        """Everything takes longer from the one to the other; 0 ends that."""
        self.way(source, target).extra_s = extra_s

    def reset(self, one: str, other: str) -> None:
        """Connections between the two are reset."""
        for connection in self._between(one, other):
            connection.reset("Connection reset by peer", lost=self._chance.choice((0.0, 0.3, 0.7, 1.0)))

    def paused(self, loop: NodeLoop) -> None:
        """Others may notice that it does not answer."""
        for connection in list(self.connections):
            for own, _, other in connection.sides():
                if own.loop is loop:
                    self._watch(connection, lambda: loop.is_paused, other)

    def killed(self, loop: NodeLoop) -> None:
        """Its connections end."""
        for address, listener in list(self.listeners.items()):
            if listener.loop is loop:
                del self.listeners[address]
        lost = self._chance.choice((0.0, 0.0, 0.5, 1.0))
        for connection in list(self.connections):
            if loop in (connection.near.loop, connection.far.loop):
                connection.died(loop, lost)

    def _between(self, one: str, other: str) -> list[SimulatedConnection]:
        return [it for it in self.connections if {it.near.loop.name, it.far.loop.name} == {one, other}]

    def _watch(self, connection: SimulatedConnection, lasts: Callable[[], bool], *ends: ConnectionEnd) -> None:
        for end in ends:
            when = self.timeline.now + self._chance.uniform(*KEEPALIVE_S)
            self.timeline.at(when, partial(self._look, connection, end, lasts))

    def _look(self, connection: SimulatedConnection, end: ConnectionEnd, lasts: Callable[[], bool], _: object) -> None:
        if lasts():
            connection.time_out(end)
