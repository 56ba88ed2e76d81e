"""A router between a scripted controller and scripted replicas, all over real gRPC on free ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.convert.batches import ids_from_wire, ids_of_results, list_of
from slotmesh.runtime.channels import open_channel
from slotmesh.transport.duplex import read_frame
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.support.fakes.controller import FakeController, fake_controller, table
from tests.support.fakes.replica import FakeReplica, fake_replica
from tests.support.tables import linked_ids
from tests.support.wait import wait_until
from tests.support.wire_options import wire_options

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse
Call = grpc.aio.StreamStreamCall[Request, Response]
RosterVersion = router_service_pb2.RosterVersion


@dataclass
class RouterBench:
    """A router, its scripted controller and two scripted replicas."""

    controller: FakeController
    replicas: list[FakeReplica]
    stub: Any
    address: str
    stop: Callable[[], Coroutine[None, None, None]]
    """Stops the router in order."""
    revision: int = 1
    links: list[str] = field(default_factory=list)
    """The replicas that routers should be linked to, by id."""
    roster_revision: int = 0
    departed: dict[str, int] = field(default_factory=dict)
    """Replicas that were in a table and are no more, by id, and the first roster without each."""
    calls: list[Call] = field(default_factory=list)

    async def open(
        self, endpoint: str = "echo", stub: Any = None, *, rosters: Sequence[RosterVersion] | None = None, **fields: Any
    ) -> Call:
        """An opened stream, at the first router unless told otherwise; its `opened` frame is read.

        A client of a session acknowledges the roster, and says that it had acknowledged `rosters` before: the newest
        one unless told otherwise.
        """
        call: Call = (stub or self.stub).StreamCalls()
        self.calls.append(call)
        if rosters is None:
            rosters = [self.roster] if fields.get("epoch", 0) > 1 else []
        await call.write(Request(open=router_service_pb2.OpenStream(endpoint=endpoint, rosters=rosters, **fields)))
        opened = await next_frame(call)
        assert opened.WhichOneof("frame") == "opened"
        assert opened.opened.window.calls == 8192
        if opened.opened.HasField("roster"):
            await call.write(Request(roster=opened.opened.roster))
        return call

    @property
    def roster(self) -> RosterVersion:
        """The one in force."""
        return RosterVersion(generation="g", revision=self.roster_revision)

    async def linked(
        self, *replicas: FakeReplica, others: Mapping[str, Sequence[FakeReplica]] | None = None, **fields: Any
    ) -> None:
        """Returns when every router has this table and these links: backend `b`, and `others` if there are."""
        self.revision += 1
        more = {name: self._named(each) for name, each in (others or {}).items()}
        named = self._named(replicas)
        links = sorted([*named, *(each for names in more.values() for each in names)])
        if links != self.links:
            self.roster_revision = self.revision
            self.departed |= dict.fromkeys(set(self.links) - set(links), self.revision)
            self.links = links
        for each in links:
            self.departed.pop(each, None)
        fields["departed"] = self.departed
        self.controller.push(table(self.revision, named, others=more, roster_revision=self.roster_revision, **fields))
        await wait_until(
            lambda: (
                all(
                    any(report.revision == self.revision and linked_ids(report) == self.links for report in reports)
                    for reports in self.controller.reports_of.values()
                )
                and self.controller.reports_of
            ),
            what="the routers report the table and the links",
        )

    async def with_slots(self, slots: int, replica: FakeReplica, **fields: Any) -> None:
        """Returns when the router is linked to this replica alone, which says that it has so many permits."""
        await self.linked()
        replica.capacity.max_ongoing = slots
        await self.linked(replica, **fields)

    @asynccontextmanager
    async def another_router(self) -> AsyncIterator[Any]:
        """The stub of one more router at the same controller, with the same table."""
        async with self.another_address() as address, open_channel(address) as channel:
            yield router_service_pb2_grpc.RouterServiceStub(channel)

    @asynccontextmanager
    async def another_address(self) -> AsyncIterator[str]:
        """The address of one more router at the same controller, with the same table."""
        settings = RouterSettings(port=0, metrics_port=-1, controller=self.controller.address)
        async with serve(settings) as server:
            await wait_until(lambda: settings.router_id in self.controller.reports_of)
            reports = self.controller.reports_of[settings.router_id]
            await wait_until(lambda: reports and linked_ids(reports[-1]) == self.links, what="the router is linked")
            yield server.address
            del self.controller.reports_of[settings.router_id]

    def _named(self, replicas: Sequence[FakeReplica]) -> dict[str, str]:
        return {f"r{self.replicas.index(each)}": each.address for each in replicas}


@asynccontextmanager
async def router_bench(metrics_port: int = -1, **router: Any) -> AsyncIterator[RouterBench]:
    """A router that is linked to two replicas; with port 0 it says in its hello where its metrics are.

    `router`: its settings.
    """
    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(fake_controller())
        replicas = [await stack.enter_async_context(fake_replica()) for _ in range(2)]
        settings = RouterSettings(port=0, metrics_port=metrics_port, controller=controller.address, **router)
        running = await stack.enter_async_context(AsyncExitStack())
        server = await running.enter_async_context(serve(settings))
        channel = await stack.enter_async_context(open_channel(server.address))
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        mesh = RouterBench(controller, replicas, stub, server.address, running.aclose)
        await mesh.linked(*replicas)
        yield mesh
        for call in mesh.calls:
            call.cancel()


async def next_frame(call: Call) -> Response:
    """The next frame but rosters, which are acknowledged; an ended stream is an error."""
    while True:
        response = await read_frame(call)
        assert response is not None, "the stream ended"
        if response.WhichOneof("frame") != "roster":
            return response
        await call.write(Request(roster=response.roster))


async def read_to_the_end(call: Call) -> None:
    """Whatever comes, until the router ends the stream."""
    while await read_frame(call) is not None:
        pass


def batch(first: int, *payloads: bytes, **options: Any) -> router_service_pb2.CallBatch:
    """Calls with ids from `first` on."""
    return router_service_pb2.CallBatch(first_call_id=first, payloads=payloads, options=wire_options(**options))


def calls(first: int, *payloads: bytes, **options: Any) -> Request:
    """A frame of one batch."""
    return Request(calls=router_service_pb2.CallFrame(batches=[batch(first, *payloads, **options)]))


async def taken(*streams: Call) -> None:
    """Returns when the router has taken all that was written to these streams, none of which is owed an answer."""
    for call in streams:
        await call.write(Request(calls=router_service_pb2.CallFrame(batches=[router_service_pb2.CallBatch()])))
        assert (await next_frame(call)).WhichOneof("frame") == "rejected"


async def outcomes(call: Call, count: int) -> tuple[dict[int, bytes], dict[int, call_pb2.Failure]]:
    """Reads until `count` calls have their outcome: results and failures, by call id."""
    done: dict[int, bytes] = {}
    failed: dict[int, call_pb2.Failure] = {}
    last_frame = 0
    while len(done) + len(failed) < count:
        frame = (await next_frame(call)).results
        assert frame.frame_no > last_frame
        last_frame = frame.frame_no
        for results in frame.batches:
            ids = ids_of_results(results)
            assert not set(ids) & (done.keys() | failed.keys())
            done.update(zip(ids, list_of(results), strict=True))
        for errors in frame.errors:
            ids = ids_of_failed(errors)
            assert not set(ids) & (done.keys() | failed.keys())
            failed.update(dict.fromkeys(ids, errors.failure))
    return done, failed


def ids_of_failed(errors: call_pb2.CallErrors) -> Sequence[int]:
    """The calls that failed."""
    return ids_from_wire(errors.calls)
