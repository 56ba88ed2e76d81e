"""`AttachReplica` from the replica's side: its reports, and how it follows orders."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from slotmesh.codec import JSON
from slotmesh.convert.specification import struct_to_wire
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.internal.v1 import membership_service_pb2_grpc
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.process_identity import own_process
from slotmesh.server.server import GrpcServer
from slotmesh.status import to_exception
from slotmesh.transport.duplex import read_request
from slotmesh.v1 import mesh_pb2
from slotmesh.version import VERSION
from tests.support.replicas import HANDLERS, RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

STARTING, READY, DRAINING, STOPPED, FAILED = 1, 2, 3, 4, 5


OF_CONFIGURATION = ("generation", "is_backend_unknown", "rank", "num_replicas")


class Attachment:
    """One AttachReplica stream."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.hello: wire.ReplicaHello | None = None
        self.reports: list[wire.ReplicaReport] = []
        self.emptied: list[wire.PartitionsEmptied] = []
        self.is_half_closed = False
        self._writing = asyncio.Lock()

    @property
    def states(self) -> list[int]:
        """Without repetitions."""
        states = [int(report.state) for report in self.reports]
        return [state for index, state in enumerate(states) if index == 0 or states[index - 1] != state]

    async def configure(self, **fields: Any) -> None:
        """Fields of its backend, and of the configuration itself (`OF_CONFIGURATION`); `term` is that of the frame."""
        of_it = {name: fields.pop(name) for name in OF_CONFIGURATION if name in fields}
        term = fields.pop("term", 0)
        configuration = wire.ReplicaConfiguration(backend=mesh_pb2.Backend(**fields), **of_it)
        await self._write(wire.AttachReplicaResponse(configuration=configuration, term=term))

    async def drain(self, message: str, *, term: int) -> None:
        """Orders it to drain, as a controller of this term."""
        await self._write(wire.AttachReplicaResponse(drain=wire.DrainOrder(message=message), term=term))

    async def acknowledge(self, stamp: int) -> None:
        """Confirms a report."""
        await self._write(wire.AttachReplicaResponse(acknowledged=wire.ReportAcknowledged(stamp=stamp)))

    async def hold(self) -> None:
        """Reports that it is on hold, as a controller with an older state file."""
        await self._write(wire.AttachReplicaResponse(on_hold=wire.ControllerOnHold()))

    async def _write(self, frame: wire.AttachReplicaResponse) -> None:
        """One after another: what the test says, and the first configuration."""
        async with self._writing:
            await self.context.write(frame)


class FakeController(membership_service_pb2_grpc.MembershipServiceServicer):
    """Writes down what replicas say."""

    def __init__(self, first: Mapping[str, Any] | None, refusal: Failure | None) -> None:
        self.attachments: list[Attachment] = []
        self._first = first
        self.refusal = refusal
        self.term = 0
        """Under which it configures."""
        self.acknowledges = True
        """Whether it confirms reports that have a stamp."""

    async def AttachReplica(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: Any
    ) -> None:
        attachment = Attachment(context)
        self.attachments.append(attachment)
        if self.refusal is not None:
            raise to_exception(self.refusal)
        while (frame := await read_request(context)) is not None:
            match frame.WhichOneof("frame"):
                case "hello":
                    attachment.hello = frame.hello
                    if self._first is not None:
                        await attachment.configure(term=self.term, **self._first)
                case "report":
                    attachment.reports.append(frame.report)
                    if frame.report.stamp and self.acknowledges:
                        await attachment.acknowledge(frame.report.stamp)
                case "emptied":
                    attachment.emptied.append(frame.emptied)
                case unknown:
                    raise AssertionError(unknown)
        attachment.is_half_closed = True

    async def AttachRouter(self, request_iterator: object, context: Any) -> None:  # type: ignore[override]  # as above
        raise AssertionError("a replica is no router")

    async def attached(self, count: int = 1) -> Attachment:
        """The newest of so many attachments, once it has reported."""
        await wait_until(lambda: len(self.attachments) >= count and self.attachments[-1].reports, what="attachment")
        return self.attachments[-1]


@asynccontextmanager
async def controller(
    first: Mapping[str, Any] | None = None, *, refusal: Failure | None = None, port: int = 0
) -> AsyncIterator[tuple[FakeController, GrpcServer]]:
    """Answers `hello` with the configuration `first`, or leaves it to the test where that is None."""
    servicer = FakeController(first, refusal)
    server = GrpcServer("controller", port=port)
    server.add(membership_service_pb2_grpc.add_MembershipServiceServicer_to_server, servicer)
    await server.start()
    try:
        yield servicer, server
    finally:
        await server.stop()


def at(server: GrpcServer, **settings: Any) -> Any:
    return running_replica(controller=server.address, backend="b", **settings)


async def test_a_life_as_the_controller_hears_it() -> None:
    async with controller() as (fake, server), at(server, replica_id="b-1", until_ready=False) as replica:
        attachment = await fake.attached()
        hello = attachment.hello
        assert hello is not None
        assert (hello.replica_id, hello.backend, hello.version) == ("b-1", "b", VERSION)
        assert hello.incarnation == replica.app.identity.incarnation
        assert len(hello.incarnation) == 32
        assert hello.pid > 0
        assert (attachment.states, attachment.reports[0].address) == ([STARTING], "")
        await attachment.configure()
        await wait_until(lambda: READY in attachment.states)
        assert (attachment.reports[-1].address, attachment.reports[-1].max_ongoing) == (replica.address, 8)
        assert await replica.stop() == 0
        assert attachment.states in ([STARTING, READY, DRAINING, STOPPED], [STARTING, READY, STOPPED])
        assert attachment.is_half_closed


async def test_the_configuration_goes_before_the_decorator() -> None:
    first = {"max_ongoing": 3, "prefetch": 1, "user_config": struct_to_wire({"greeting": "welcome"})}
    async with controller(first) as (fake, server), at(server) as replica, replica.router() as stream:
        attachment = await fake.attached()
        assert (stream.capacities[0].max_ongoing, stream.capacities[0].prefetch) == (3, 1)
        await stream.send(stream.run([b'["x"]'], method="greet", content_type=JSON))
        await stream.wait_answers(1)
        assert stream.results == {1: b'"welcome, x"'}
        await attachment.configure(max_ongoing=5, user_config=first["user_config"])
        await wait_until(lambda: stream.capacities[-1].max_ongoing == 5)
        assert stream.capacities[-1].prefetch == 4  # the decorator's again
        await wait_until(lambda: attachment.reports[-1].max_ongoing == 5)


async def test_rank_and_number_of_replicas_are_followed_and_the_rank_is_reported_to_the_next_controller() -> None:
    async with (
        controller({"rank": 3, "num_replicas": 5, "version": "v1"}) as (fake, server),
        at(server, devices="cuda=0") as replica,
    ):
        attachment = await fake.attached()
        assert attachment.hello is not None
        assert not attachment.hello.HasField("rank")
        own = replica.app.replica.own
        first = own.current
        assert (first.rank, first.num_replicas, first.version, first.devices) == (3, 5, "v1", ("cuda=0",))
        await attachment.configure(rank=0, num_replicas=7, version="v2")
        await wait_until(lambda: own.current.rank == 0)
        assert (own.current.num_replicas, own.current.version) == (7, "v1"), "the handler was constructed with v1"
        assert (first.rank, first.num_replicas) == (3, 5)
        await attachment.configure()
        port = int(server.address.rsplit(":", 1)[1])
        await server.stop()
        async with controller({}, port=port) as (other, _):
            again = await other.attached()
            assert again.hello is not None
            assert again.hello.HasField("rank")
            assert again.hello.rank == 0
            assert own.current.rank == 0, "a controller without ranks changes none"


async def test_nobody_gets_a_stream_before_the_handler_is_there(tmp_path: Path) -> None:
    now = tmp_path / "now"
    first = {"user_config": struct_to_wire({"until": str(now)})}
    async with (
        controller(first) as (fake, server),
        at(server, handler=f"{HANDLERS}:Slow", until_ready=False) as replica,
    ):
        attachment = await fake.attached()
        async with replica.router() as early:
            await wait_until(lambda: early.ended)
            assert early.error is not None
            assert early.error.code() is grpc.StatusCode.UNAVAILABLE
        assert attachment.states == [STARTING]
        now.touch()
        await wait_until(lambda: READY in attachment.states)
        async with replica.router() as stream:
            assert stream.frames[0] == "opened"


async def test_reports_go_on_while_the_constructor_takes_its_time(tmp_path: Path) -> None:
    now = tmp_path / "now"
    first = {"user_config": struct_to_wire({"until": str(now)})}
    async with controller(first) as (fake, server), at(server, handler=f"{HANDLERS}:Slow", until_ready=False):
        attachment = await fake.attached()
        await wait_until(lambda: len(attachment.reports) >= 2)
        assert attachment.states == [STARTING]
        now.touch()
        await wait_until(lambda: READY in attachment.states)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (f"{HANDLERS}:Broken", ["Traceback (most recent call last)", "RuntimeError: no model here"]),
        (f"{HANDLERS}:Nowhere", ["has no Nowhere"]),
    ],
)
async def test_a_handler_that_cannot_start_is_reported_with_its_traceback(handler: str, words: list[str]) -> None:
    async with controller({}) as (fake, server), at(server, handler=handler, until_ready=False) as replica:
        with pytest.raises(CannotStart):
            await replica.task
        attachment = fake.attachments[-1]
        assert attachment.states[-1] == FAILED
        for word in words:
            assert word in attachment.reports[-1].error
        assert attachment.is_half_closed


async def test_an_order_to_drain_is_a_signal_to_stop() -> None:
    async with controller({}) as (fake, server), at(server) as replica:
        attachment = await fake.attached()
        await attachment.context.write(wire.AttachReplicaResponse(drain=wire.DrainOrder(message="scale down")))
        async with asyncio.timeout(20.0):
            assert await replica.task == 0
        assert attachment.states[-1] == STOPPED


async def test_without_a_controller_it_goes_on_serving_and_attaches_again() -> None:
    async with controller({}) as (fake, server):
        port = server.port
        replica_at = at(server)
        replica: RunningReplica = await replica_at.__aenter__()
        await fake.attached()
    try:
        async with replica.router() as stream:
            await stream.send(stream.run([b"x"]))
            await stream.wait_answers(1)
        async with controller({}, port=port) as (again, _):
            attachment = await again.attached()
            assert attachment.states == [READY]
            assert attachment.hello is not None
            assert attachment.hello.incarnation == replica.app.identity.incarnation
            assert await replica.stop() == 0
    finally:
        await replica_at.__aexit__(None, None, None)


async def test_it_can_be_stopped_while_the_controller_is_away() -> None:
    async with controller() as (_, server):
        address = server.address
    async with running_replica(controller=address, backend="b", until_ready=False) as replica:
        await wait_until(lambda: replica.app.replica.address)
        assert await replica.stop() == 0


async def test_it_can_be_stopped_while_the_constructor_takes_its_time(tmp_path: Path) -> None:
    now = tmp_path / "now"
    first = {"user_config": struct_to_wire({"until": str(now)})}
    async with (
        controller(first) as (fake, server),
        at(server, handler=f"{HANDLERS}:Slow", until_ready=False) as replica,
    ):
        attachment = await fake.attached()
        await wait_until(lambda: "constructor" in {it.name for it in threading.enumerate()})
        assert await replica.stop() == 0
        assert attachment.states == [STARTING, STOPPED]
        now.touch()
        await wait_until(lambda: "constructor" not in {it.name for it in threading.enumerate()})


async def test_an_incarnation_that_was_replaced_ends() -> None:
    refusal = Failure(reason=Reason.REPLICA_GONE, message="replaced")
    async with controller(refusal=refusal) as (fake, server), at(server, until_ready=False) as replica:
        async with asyncio.timeout(20.0):
            assert await replica.task == 0
        # gRPC loses the words of a refusal that meets a write under way; then the replica asks once more.
        assert fake.attachments


async def test_one_that_is_refused_for_another_reason_says_why_and_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusal = Failure(reason=Reason.BAD_REQUEST, message="another process with the id 'b-1' lives")
    async with controller({}, refusal=refusal) as (fake, server), at(server, until_ready=False) as replica:
        await wait_until(lambda: len(fake.attachments) > 3, what="it tries again")
        assert not replica.task.done()
        fake.refusal = None
        await wait_until(lambda: replica.app.replica.engine, what="it is ready")
    refused = [record for record in caplog.records if "refuses this replica" in record.getMessage()]
    assert len(refused) == 1
    assert "another process with the id 'b-1' lives" in str(refused[0].__dict__)


async def test_a_handler_starts_with_the_settings_of_its_backend_once_that_is_applied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A handler without `reconfigure` would keep the defaults for good."""
    caplog.set_level("INFO")
    async with controller({"is_backend_unknown": True}) as (fake, server), at(server, until_ready=False) as replica:
        attachment = await fake.attached()
        await attachment.configure(is_backend_unknown=True, max_ongoing=3)
        await wait_until(lambda: recorded(caplog, "no backend of this name"), what="the log states it")
        settings = struct_to_wire({"greeting": "welcome"})
        await attachment.configure(max_ongoing=4, user_config=settings)
        await wait_until(lambda: replica.app.replica.engine, what="it is ready")
        assert replica.handler.greeting == "welcome", "it was constructed with the settings of its backend"
        assert replica.engine.scheduler.max_ongoing == 4
        await attachment.configure(is_backend_unknown=True)
        await attachment.configure(max_ongoing=5, user_config=settings)
        await wait_until(lambda: replica.engine.scheduler.max_ongoing == 5, what="the newest configuration")
    warnings = recorded(caplog, "no backend of this name")
    assert len(warnings) == 2
    assert "--backend" in warnings[0]
    assert len(recorded(caplog, "the backend was applied")) == 2


def recorded(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [str(record.__dict__) for record in caplog.records if words in record.getMessage()]


def epochs_of(each: wire.EndpointPartitions) -> dict[int, int]:
    return dict(zip(each.partitions, each.owner_epochs, strict=True))


async def test_revoked_partitions_are_refused_and_each_is_reported_when_it_is_empty() -> None:
    async with controller({}) as (fake, server), at(server) as replica, replica.router() as stream:
        attachment = await fake.attached()
        run = stream.run([b"x", b"y"], method="wait", key="k", partition=9, epoch=4)
        await stream.send(run, stream.run([b"z"], method="wait", key="k", partition=9, epoch=4))
        await wait_until(lambda: replica.engine.scheduler.in_use == 1)
        moved = wire.EndpointPartitions(endpoint="e", partitions=[9, 10], owner_epochs=[4, 2])
        await attachment.context.write(wire.AttachReplicaResponse(revoke=wire.RevokePartitions(endpoints=[moved])))
        await wait_until(lambda: 3 in stream.refused)
        assert stream.refused[3].reason == "STALE_TABLE"
        await wait_until(lambda: attachment.emptied)
        assert [epochs_of(each) for each in attachment.emptied[0].endpoints] == [{10: 2}]
        replica.handler.gate.set()
        await wait_until(lambda: len(attachment.emptied) == 2)
        assert [epochs_of(each) for each in attachment.emptied[1].endpoints] == [{9: 4}]
        await stream.wait_answers(3)


async def test_a_replica_that_has_served_says_so_and_tells_what_still_runs_when_all_is_revoked() -> None:
    async with controller({"generation": "g1"}) as (fake, server), at(server) as replica, replica.router() as stream:
        first = await fake.attached()
        assert first.hello is not None
        assert not first.hello.has_served
        assert (first.hello.generation, first.hello.newest_epoch) == ("", 0)
        assert first.hello.process == own_process()
        await stream.send(stream.run([b"x"], method="wait", key="k", partition=9, epoch=4))
        await wait_until(lambda: replica.engine.scheduler.in_use == 1)
        port = server.port
        await server.stop()
        async with controller({}, port=port) as (other, _):
            again = await other.attached()
            assert again.hello is not None
            assert again.hello.has_served
            assert (again.hello.generation, again.hello.newest_epoch) == ("g1", 4)
            await again.context.write(wire.AttachReplicaResponse(revoke=wire.RevokePartitions(through_epoch=100)))
            await wait_until(lambda: again.emptied)
            (emptied,) = again.emptied
            assert (emptied.through_epoch, list(emptied.endpoints)) == (100, [])
            assert [(each.endpoint, epochs_of(each)) for each in emptied.busy] == [("e", {9: 100})]
            await stream.send(stream.run([b"y"], method="wait", key="l", partition=1, epoch=100))
            await wait_until(lambda: 2 in stream.refused)
            replica.handler.gate.set()
            await stream.wait_answers(2)
