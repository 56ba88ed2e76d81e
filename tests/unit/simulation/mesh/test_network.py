"""Connections in memory: order, delays, and what befalls them."""

from __future__ import annotations

import pytest

from simulation.mesh.loop import NodeLoop, node_loop
from simulation.mesh.network import Listener, Network, SimulatedConnection
from simulation.mesh.timeline import Timeline

ADDRESS = "127.0.0.2:7000"


class Wire:
    """Two nodes and a connection between them."""

    def __init__(self, seed: int = 1) -> None:
        self.timeline = Timeline(seed)
        self.network = Network(self.timeline)
        self.near = node_loop(self.timeline, "near", self.timeline.chance("near"))
        self.far = node_loop(self.timeline, "far", self.timeline.chance("far"))
        self.network.listeners[ADDRESS] = Listener(self.far, lambda _: None)
        self.connections: list[SimulatedConnection | None] = []
        self.why: list[str] = []
        self.heard: list[tuple[int, float]] = []
        self.ends: list[tuple[str, str, float]] = []

    def connect(self, *, within_s: float = 0.5) -> SimulatedConnection:
        self.network.connect(self.near, ADDRESS, self._connected)
        self.timeline.run(self.timeline.now + within_s)
        connection = self.connections[-1]
        assert connection is not None
        connection.near.on_end = lambda why: self.ends.append(("near", why, self.timeline.now))
        connection.far.on_end = lambda why: self.ends.append(("far", why, self.timeline.now))
        return connection

    def send(self, connection: SimulatedConnection, numbers: range) -> None:
        for number in numbers:
            connection.out.send(10, self._hear, number)

    def wait(self, seconds: float) -> None:
        self.timeline.run(self.timeline.now + seconds)

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.heard]

    def _connected(self, connection: SimulatedConnection | None, why: str) -> None:
        self.connections.append(connection)
        self.why.append(why)

    def _hear(self, number: int) -> None:
        self.heard.append((number, self.timeline.now))


def test_what_is_sent_arrives_in_order_and_takes_time() -> None:
    wire = Wire()
    connection = wire.connect()
    sent_at = wire.timeline.now
    wire.send(connection, range(50))
    wire.wait(1.0)

    assert wire.numbers == list(range(50))
    assert wire.heard[0][1] > sent_at


@pytest.mark.parametrize("seed", range(5))
def test_a_stall_holds_up_everything_and_loses_nothing(seed: int) -> None:
    wire = Wire(seed)
    connection = wire.connect()
    wire.send(connection, range(10))
    wire.network.stall("near", "far")
    wire.send(connection, range(10, 20))
    wire.wait(1.0)
    before = len(wire.heard)
    wire.send(connection, range(20, 30))
    wire.timeline.at(wire.timeline.now + 0.0001, lambda _: wire.network.heal("near", "far"))
    wire.wait(1.0)

    assert before == 0
    assert wire.numbers == list(range(30))


def test_a_stall_of_one_way_leaves_the_other() -> None:
    wire = Wire()
    connection = wire.connect()
    wire.network.stall("far", "near")
    wire.send(connection, range(3))
    wire.wait(1.0)

    assert wire.numbers == [0, 1, 2]


def test_both_sides_find_out_about_a_stall_each_by_itself() -> None:
    wire = Wire()
    wire.connect()
    wire.network.stall("near", "far")
    wire.wait(4.9)
    assert not wire.ends
    wire.wait(10.2)

    assert {side for side, _, _ in wire.ends} == {"near", "far"}
    assert wire.ends[0][2] != wire.ends[1][2]


def test_a_stall_that_ends_in_time_is_not_noticed() -> None:
    wire = Wire()
    wire.connect()
    wire.network.stall("near", "far")
    wire.wait(4.0)
    wire.network.heal("near", "far")
    wire.wait(20.0)

    assert not wire.ends


@pytest.mark.parametrize("seed", range(5))
def test_of_what_a_dead_process_had_written_a_part_arrives_and_then_the_end(seed: int) -> None:
    wire = Wire(seed)
    connection = wire.connect()
    wire.network.way("near", "far").extra_s = 0.1
    wire.send(connection, range(100))
    wire.near.kill()
    wire.network.killed(wire.near)
    wire.wait(1.0)

    assert wire.numbers == list(range(len(wire.heard)))
    assert [side for side, _, _ in wire.ends] == ["far"]
    assert all(at <= wire.ends[0][2] for _, at in wire.heard)


def test_nothing_arrives_after_the_end() -> None:
    wire = Wire()
    connection = wire.connect()
    wire.send(connection, range(3))
    connection.close(connection.near, "over")
    wire.send(connection, range(3, 6))
    wire.wait(1.0)

    assert wire.numbers == [0, 1, 2]
    assert [(side, why) for side, why, _ in wire.ends] == [("far", "over")]


def test_a_reset_is_heard_on_both_sides() -> None:
    wire = Wire()
    wire.connect()
    wire.network.reset("far", "near")
    wire.wait(1.0)

    assert {side for side, _, _ in wire.ends} == {"near", "far"}
    assert not wire.network.connections


@pytest.mark.parametrize("cause", ["nobody", "dead", "stalled", "paused"])
def test_there_is_no_connection_where_nobody_answers(cause: str) -> None:
    wire = Wire()
    match cause:
        case "nobody":
            del wire.network.listeners[ADDRESS]
        case "dead":
            wire.far.kill()
        case "stalled":
            wire.network.stall("near", "far")
        case _:
            wire.far.pause()
    wire.network.connect(wire.near, ADDRESS, wire._connected)
    wire.wait(1.0)

    assert wire.connections == [None]
    assert wire.why[0]


def test_a_paused_process_is_given_up_by_those_it_talks_to() -> None:
    wire = Wire()
    wire.connect()
    pause(wire, wire.far)
    wire.wait(16.0)
    assert [side for side, _, _ in wire.ends] == ["near"]
    wire.far.resume()
    wire.wait(1.0)

    assert [side for side, _, _ in wire.ends] == ["near", "far"]


def pause(wire: Wire, loop: NodeLoop) -> None:
    loop.pause()
    wire.network.paused(loop)
