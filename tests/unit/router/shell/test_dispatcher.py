"""The dispatcher: events in, and what the scheduler commands goes to sinks and links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from router_service.core.commands import CancelRun, Delivery, Step
from router_service.core.events import (
    CallsCancelled,
    CallsSubmitted,
    LinkFailed,
    LinkLost,
    LinkOpened,
    RouterEvent,
    RouterTimePassed,
    RunsCompleted,
    TableReceived,
)
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.replicas.backends import FIRST_S
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import SessionConnection
from router_service.core.routing_table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.reports import LinkReport
from slotmesh.spec.model import Backend
from slotmesh.transport.pump import StreamPump
from tests.support.fakes.clock import FakeClock
from tests.unit.router.world_callers import caller, options, session_caller


class Notes:
    """What sinks and links were told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def take(self) -> list[str]:
        told, self.told = self.told, []
        return told


class NotedLink:
    def __init__(self, notes: Notes, replica: RoutedReplica) -> None:
        self._tell: Callable[[str], None] = lambda what: notes.told.append(f"{replica.replica_id}: {what}")

    def flush(self) -> None:
        self._tell("flush")

    def cancel(self, command: CancelRun) -> None:
        self._tell(f"cancel {command.count}")

    def reconcile(self, session: SessionConnection) -> None:
        self._tell(f"reconcile {session.epoch}")

    def retry_in(self, delay_s: float) -> None:
        self._tell(f"retry in {delay_s}")

    def forget(self, first: int, count: int) -> None:
        self._tell(f"forget {first} {count}")

    def take(self, run_id: int, count: int) -> None:
        self._tell(f"take {run_id} {count}")

    def request(self, run_id: int, requests: Sequence[bytes | None]) -> None:
        self._tell(f"request {run_id} {requests!r}")

    async def finish(self) -> None:
        self._tell("finish")

    def close(self) -> None:
        self._tell("close")


class BrokenSink:
    def deliver(self, delivery: Delivery) -> None:
        raise ZeroDivisionError


class NotedSink:
    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def deliver(self, delivery: Delivery) -> None:
        self._notes.told.append(f"{type(delivery).__name__} {list(delivery.ids)}")


class Shell:
    """A dispatcher between callers and replicas that only note what they are told."""

    def __init__(self) -> None:
        self.notes = Notes()
        scheduler = RouterScheduler(lambda: 0.5)
        self.clock = FakeClock()
        self.dispatcher = Dispatcher(scheduler, self.clock, lambda replica, _: NotedLink(self.notes, replica))
        self.report = LinkReport(scheduler)
        self._revision = 0

    def table(self, *names: str) -> None:
        self._revision += 1
        routes = [ReplicaRoute(key=(name, "life"), address="", max_ongoing=4) for name in names]
        table = RoutingTable(
            generation="g",
            revision=self._revision,
            endpoints={"e": EndpointRoute(name="e", weights={"b": 1.0})},
            backends={"b": BackendRoute(settings=Backend(name="b"), replicas=routes)},
        )
        self.dispatcher.post(TableReceived(table))

    def replica(self, name: str) -> RoutedReplica:
        return self.dispatcher.scheduler.topology.replicas[name, "life"]

    def link(self, name: str) -> None:
        self.dispatcher.post(LinkOpened(self.replica(name), ReportedCapacity(max_ongoing=4)))

    def submit(self, by: Caller, *ids: int) -> None:
        self.dispatcher.post(CallsSubmitted(by, "e", [(options(), list(ids), [b"x"] * len(ids))]))

    def attach(self, each: Caller) -> Caller:
        self.dispatcher.attach(each, NotedSink(self.notes))
        return each

    def cut(self, name: str) -> int:
        return sum(len(batch.payloads) for batch in self.dispatcher.cut_frame(self.replica(name), 100, 10**6))


@pytest.fixture
def shell() -> Shell:
    shell = Shell()
    shell.table("r")
    shell.link("r")
    return shell


@pytest.mark.asyncio
async def test_calls_go_to_the_link_and_their_results_to_the_sink(shell: Shell) -> None:
    client = shell.attach(caller())
    shell.submit(client, 1, 2)
    assert shell.notes.take() == ["r: flush"]
    assert shell.cut("r") == 2
    shell.dispatcher.post(RunsCompleted(shell.replica("r"), [([1, 2], [b"a", b"b"], "")], [], None))
    assert shell.notes.take() == ["DeliverResults [1, 2]"]


@pytest.mark.asyncio
async def test_the_caller_hears_before_the_replica_of_what_it_takes_back(shell: Shell) -> None:
    client = shell.attach(caller())
    shell.submit(client, 1, 2)
    assert shell.cut("r") == 2
    shell.notes.take()
    shell.dispatcher.post(CallsCancelled(client, [(2, 2)]))
    assert shell.notes.take() == ["DeliverFailure [2]", "r: cancel 1"]


@pytest.mark.asyncio
@pytest.mark.parametrize("in_session", [False, True])
async def test_who_has_left_hears_nothing(shell: Shell, in_session: bool) -> None:
    client = shell.attach(session_caller() if in_session else caller())
    shell.submit(client, 1)
    shell.dispatcher.detach(client)
    assert not client.has_open_calls
    assert shell.cut("r") == 0
    assert "Deliver" not in " ".join(shell.notes.take())


@pytest.mark.asyncio
async def test_what_is_told_of_runs_goes_only_to_the_link_that_they_were_on(shell: Shell) -> None:
    replica, links = shell.replica("r"), shell.dispatcher.links
    links.forget(replica, replica.links, 5, 2)
    links.take(replica, replica.links, 7, 3)
    assert shell.notes.take() == ["r: forget 5 2", "r: take 7 3"]
    before = replica.links
    shell.dispatcher.post(LinkLost(replica, "cut"))
    shell.link("r")
    links.forget(replica, before, 5, 2)
    links.take(replica, before, 7, 3)
    assert not shell.notes.take()


@pytest.mark.asyncio
async def test_a_link_that_failed_hears_when_to_try_again(shell: Shell) -> None:
    shell.dispatcher.post(LinkLost(shell.replica("r"), "cut"))
    shell.dispatcher.post(LinkFailed(shell.replica("r")))
    assert shell.notes.take() == [f"r: retry in {FIRST_S * 0.75}"]


@pytest.mark.asyncio
async def test_links_are_closed_with_their_replicas_and_at_the_end(shell: Shell) -> None:
    shell.table("r", "s")
    shell.table("s")
    assert shell.notes.take() == ["r: close"]
    await shell.dispatcher.links.finish()
    shell.dispatcher.close()
    assert shell.notes.take() == ["s: finish", "s: close"]


@pytest.mark.asyncio
async def test_the_report_names_linked_and_ended_replicas_of_the_table(shell: Shell) -> None:
    changes: list[None] = []
    shell.report.on_change = lambda: changes.append(None)
    shell.table("r", "s")
    assert shell.report.linked_replicas() == [("r", "life")]
    shell.link("s")
    assert shell.report.linked_replicas() == [("r", "life"), ("s", "life")]
    shell.report.ended(shell.replica("s"))
    assert len(changes) == 1
    assert shell.report.ended_replicas() == [("s", "life")]
    shell.table("r")
    assert shell.report.ended_replicas() == []
    assert shell.report.linked_replicas() == [("r", "life")]


async def written_by(shell: Shell, name: str, pending: list[str]) -> StreamPump[str]:
    """A stream that notes what it writes."""

    async def write(frame: str) -> None:
        shell.notes.told.append(f"{name} writes {frame}")

    pump = StreamPump(write, lambda: pending.pop(0) if pending else None, shell.dispatcher.woken)
    running = pump.start()
    running.add_done_callback(lambda _: None)
    await asyncio.sleep(0)
    return pump


class WakingSink(NotedSink):
    """Has what it is told written to a stream."""

    def __init__(self, notes: Notes, pump: StreamPump[str], pending: list[str]) -> None:
        super().__init__(notes)
        self._pump = pump
        self._pending = pending

    def deliver(self, delivery: Delivery) -> None:
        super().deliver(delivery)
        self._pending.append(f"{list(delivery.ids)}")
        self._pump.wake()


@pytest.mark.asyncio
async def test_streams_write_what_follows_from_an_event_when_all_of_it_was_told(shell: Shell) -> None:
    pending: list[str] = []
    pump = await written_by(shell, "client", pending)
    client = caller()
    shell.dispatcher.attach(client, WakingSink(shell.notes, pump, pending))
    shell.submit(client, 1, 2)
    assert shell.cut("r") == 2
    shell.notes.take()
    shell.dispatcher.post(CallsCancelled(client, [(2, 2)]))
    assert shell.notes.take() == ["DeliverFailure [2]", "r: cancel 1", "client writes [2]"]
    assert not shell.dispatcher.woken.is_at_work
    pump.stop()


@pytest.mark.asyncio
async def test_what_has_expired_is_not_cut_though_the_event_loop_has_not_come_to_it(shell: Shell) -> None:
    client = shell.attach(caller())
    soon = options(timeout_s=1.0)
    shell.dispatcher.post(CallsSubmitted(client, "e", [(soon, [1], [b"x"]), (options(), [2], [b"x"])]))
    shell.notes.take()
    shell.clock.advance(2.0)
    assert shell.cut("r") == 1
    assert shell.notes.take() == ["DeliverFailure [1]"]
    assert shell.cut("r") == 0


# -- defects -----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_sink_that_raises_costs_others_no_results(shell: Shell) -> None:
    broken, client = caller(), shell.attach(caller())
    shell.dispatcher.attach(broken, BrokenSink())
    shell.submit(broken, 1)
    shell.submit(client, 2)
    assert shell.cut("r") == 2
    shell.notes.take()
    with pytest.raises(ZeroDivisionError):
        shell.dispatcher.post(RunsCompleted(shell.replica("r"), [([1, 2], [b"a", b"b"], "")], [], None))
    assert shell.notes.take() == ["DeliverResults [2]"]


def raises_after(monkeypatch: pytest.MonkeyPatch, shell: Shell, kind: type[RouterEvent]) -> list[float]:
    """Each step of such an event raises at its end. Returns the times of these steps."""
    times, follow = list[float](), shell.dispatcher.scheduler.follow

    def broken(event: RouterEvent, step: Step) -> None:
        follow(event, step)
        if isinstance(event, kind):
            times.append(step.now)
            raise ZeroDivisionError

    monkeypatch.setattr(shell.dispatcher.scheduler, "follow", broken)
    return times


@pytest.mark.asyncio
async def test_what_a_step_that_raises_has_commanded_is_carried_out(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = shell.attach(caller())
    shell.submit(client, 1)
    assert shell.cut("r") == 1
    shell.notes.take()
    raises_after(monkeypatch, shell, RunsCompleted)
    with pytest.raises(ZeroDivisionError):
        shell.dispatcher.post(RunsCompleted(shell.replica("r"), [([1], [b"a"], "")], [], None))
    assert shell.notes.take() == ["DeliverResults [1]"]


@pytest.mark.asyncio
async def test_timers_go_on_after_a_step_that_raised_and_not_at_each_turn(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = shell.attach(caller())
    times, dispatcher = raises_after(monkeypatch, shell, RouterTimePassed), shell.dispatcher
    monkeypatch.setattr("router_service.shell.dispatcher.PAUSE_S", 0.2)
    for number in (1, 2):
        dispatcher.post(CallsSubmitted(client, "e", [(options(timeout_s=0.01 * number), [number], [b"x"])]))
    shell.notes.take()
    began = shell.clock.now()
    for passed_s, delivered in ((0.015, ["DeliverFailure [1]"]), (0.1, []), (0.22, ["DeliverFailure [2]"])):
        shell.clock.advance(began + passed_s - shell.clock.now())
        with suppress(ZeroDivisionError):
            dispatcher.cut_frame(shell.replica("r"), 0, 0)
        assert [it for it in shell.notes.take() if it.startswith("Deliver")] == delivered
    assert len(times) == 2, "in between the timer rests"
