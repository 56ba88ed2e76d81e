"""What handlers may ask about where a call comes from: its trace, shard key, age, and whether it is a shadow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

import slotmesh
import slotmesh.testing
from slotmesh.client.sync.call_future import ThreadWorkQueue
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.spec.model import TrafficPolicy
from slotmesh.testing import Backend
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.replica import echo, hold
from tests.support.router_bench import Request, RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

CallBatch = router_service_pb2.CallBatch
TRACEPARENT = "00-" + "a" * 32 + "-" + "1" * 16 + "-01"
OTHER = "00-" + "b" * 32 + "-" + "2" * 16 + "-00"


class Origins:
    """Says of each call what its context says."""

    def __init__(self) -> None:
        self.shadows: list[tuple[bool, str]] = []
        self.go_on = asyncio.Event()
        self.ages: list[float | None] = []

    async def trace(self) -> tuple[str, str]:
        return slotmesh.context().traceparent, slotmesh.context().tracestate

    def trace_in_thread(self) -> str:
        return slotmesh.context().traceparent

    @slotmesh.batch(max_batch_size=8)
    async def traces(self, items: list[int]) -> list[str]:
        return [call.traceparent for call, _ in zip(slotmesh.contexts(), items, strict=True)]

    async def shard_key(self) -> str:
        return slotmesh.context().shard_key

    async def affinity_key(self) -> str:
        return slotmesh.context().affinity_key

    async def note_shadow(self) -> str:
        self.shadows.append((slotmesh.context().is_shadow, slotmesh.context().traceparent))
        return slotmesh.context().shard_key

    async def wait(self) -> float | None:
        self.ages.append(slotmesh.context().age())
        await self.go_on.wait()
        return slotmesh.context().age()


def span(number: int, state: TraceState | None = None) -> NonRecordingSpan:
    return NonRecordingSpan(SpanContext(number, number + 1, False, TraceFlags(1), state))


def parent(number: int) -> str:
    return f"00-{number:032x}-{number + 1:016x}-01"


async def test_calls_say_in_which_span_they_were_made() -> None:
    async with slotmesh.testing.mesh({"origins": Origins}) as mesh:
        traced = mesh.endpoint("origins").options(traced=True)
        with use_span(span(1, TraceState([("vendor", "7")]))):
            first = traced.trace()
            mapped = traced.traces.map(range(10))
            threaded = traced.trace_in_thread()
            plain = mesh.endpoint("origins").trace()
            lanes = [traced.ordered(f"k{number % 3}").trace() for number in range(5)]
        with use_span(span(2)):
            second = traced.trace()
        third = traced.trace()
        assert tuple(await first) == (parent(1), "vendor=7")
        assert await mapped == [parent(1)] * 10
        assert await threaded == parent(1)
        assert tuple(await plain) == ("", "")
        assert [tuple(each) for each in await asyncio.gather(*lanes)] == [(parent(1), "vendor=7")] * 5
        assert tuple(await second) == (parent(2), "")
        assert tuple(await third) == ("", "")


async def test_other_threads_say_in_which_span_they_made_a_call() -> None:
    def program(address: str) -> list[str]:
        with slotmesh.connect_sync(address) as mesh, use_span(span(3)):
            method = mesh.endpoint("origins").options(traced=True).trace_in_thread
            futures = [method.future(), method.send()]
            return [method(), *method.stream(), *(future.result() for future in futures)]

    async with slotmesh.testing.mesh({"origins": Origins}) as mesh:
        assert await asyncio.to_thread(program, mesh.router_addresses[0]) == [parent(3)] * 4


async def test_a_threads_stream_has_its_span_whichever_thread_woke_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another call woke the client's thread before, in no span, and both are taken over together."""
    put = ThreadWorkQueue.put
    entered, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        go_on.wait(30)

    def put_and_let_go(work: ThreadWorkQueue, *made: Any) -> None:
        put(work, *made)
        if trace.get_current_span().get_span_context().is_valid:
            go_on.set()

    def program(address: str) -> list[str]:
        with slotmesh.connect_sync(address) as mesh:
            method = mesh.endpoint("origins").options(traced=True).trace_in_thread
            method.future().add_done_callback(hold)
            assert entered.wait(30)
            earlier = method.future()
            with use_span(span(3)):
                return [*method.stream(), earlier.result()]

    monkeypatch.setattr(ThreadWorkQueue, "put", put_and_let_go)
    async with slotmesh.testing.mesh({"origins": Origins}) as mesh:
        assert await asyncio.to_thread(program, mesh.router_addresses[0]) == [parent(3), ""]


@pytest.mark.parametrize("name", ["shard_key", "affinity_key"])
async def test_a_call_knows_its_key_beside_calls_with_other_ones(name: str) -> None:
    async with slotmesh.testing.mesh({"origins": Origins}) as mesh:
        origins = mesh.endpoint("origins")
        keys = ["a", "a", "b", "", "c"]
        views: list[Any] = [origins.options(**cast("Any", {name: key})) for key in keys]
        calls = [view.method(name)() for view in views]
        assert await asyncio.gather(*calls) == keys


async def test_a_lane_that_is_traced_shares_no_batch_with_one_that_is_not() -> None:
    async with slotmesh.testing.mesh({"origins": Origins}) as mesh:
        origins = mesh.endpoint("origins")
        with use_span(span(5)):
            plain = origins.ordered("a").trace()
            traced = origins.options(traced=True).ordered("b").trace()
        assert [(await each)[0] for each in (plain, traced)] == ["", parent(5)]


async def test_a_shadow_knows_that_it_is_one() -> None:
    backends = {"light": Backend(Origins), "dark": Backend(Origins)}
    policy = TrafficPolicy(weights={"light": 1.0}, shadows={"dark": 1.0})
    async with slotmesh.testing.mesh(backends, traffic={"origins": policy}) as mesh:
        with use_span(span(6)):
            for _ in range(3):
                assert await mesh.endpoint("origins").options(shard_key="s", traced=True).note_shadow() == "s"
        (light,), (dark,) = mesh.instances("light"), mesh.instances("dark")
        await wait_until(lambda: len(dark.shadows) == 3)
        assert (light.shadows, dark.shadows) == ([(False, parent(6))] * 3, [(True, parent(6))] * 3)


async def test_the_age_of_a_call_counts_from_the_router_on() -> None:
    async with slotmesh.testing.mesh({"origins": Backend(Origins, max_ongoing=1, prefetch=0)}) as mesh:
        origins = mesh.endpoint("origins")
        first, second = origins.wait(), origins.wait()
        (instance,) = mesh.instances("origins")
        await wait_until(lambda: len(instance.ages) == 1)
        instance.go_on.set()
        ages = await asyncio.gather(first, second)
        assert 0 <= instance.ages[0] <= ages[0]
        assert instance.ages[1] is not None
        assert instance.ages[1] >= ages[0] - instance.ages[0], "it has waited for as long as the other one ran"


async def test_in_a_handler_without_a_mesh_the_same_holds() -> None:
    async with slotmesh.testing.handler(Origins) as origins:
        with use_span(span(4)):
            assert tuple(await origins.options(traced=True, shard_key="s").trace()) == (parent(4), "")
        assert await origins.options(shard_key="s").shard_key() == "s"
        assert await origins.options(affinity_key="a").affinity_key() == "a"
        origins.instance.go_on.set()
        assert await within(origins.wait(), "the origin of a call") is not None
    assert not trace.get_current_span().get_span_context().is_valid


# -- the wire ----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


async def test_a_router_hands_the_columns_on_and_does_not_split_the_batch(bench: RouterBench) -> None:
    await bench.linked(bench.replicas[0])
    call = await bench.open()
    batch = CallBatch(
        first_call_id=1,
        payloads=[b"%d" % number for number in range(6)],
        trace_starts=[1, 3, 4],
        traceparents=[TRACEPARENT, "", OTHER],
        tracestates=["a=1", "", ""],
    )
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[batch])))
    await outcomes(call, 6)
    (run,) = bench.replicas[0].runs
    assert list(run.origins.trace_starts) == [1, 3, 4]
    assert list(run.origins.traceparents) == [TRACEPARENT, "", OTHER]
    assert list(run.origins.tracestates) == ["a=1", "", ""]
    assert run.waited_us > 0
    assert not run.origins.shadow


async def test_a_column_of_keys_and_one_of_traces_go_together(bench: RouterBench) -> None:
    await bench.linked(bench.replicas[0])
    call = await bench.open()
    batch = CallBatch(
        first_call_id=1,
        payloads=[b"a", b"b", b"c"],
        ordering_keys=["x", "y", "x"],
        trace_starts=[2],
        traceparents=[TRACEPARENT],
    )
    plain = CallBatch(first_call_id=10, payloads=[b"d"])
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[batch, plain])))
    await outcomes(call, 4)
    traced = {
        payload: traceparent
        for run in bench.replicas[0].runs
        for payload, traceparent in zip(run.payloads, spread(run), strict=True)
    }
    assert traced == {b"a": "", b"b": "", b"c": TRACEPARENT, b"d": ""}


def spread(run: replica_service_pb2.RunBatch) -> list[str]:
    """The traceparent of each call."""
    said = [""] * len(run.payloads)
    for start, traceparent in zip(run.origins.trace_starts, run.origins.traceparents, strict=True):
        said[start:] = [traceparent] * (len(said) - start)
    return said


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"trace_starts": [0]}, "traceparents"),
        ({"traceparents": [TRACEPARENT]}, "traceparents"),
        ({"trace_starts": [2], "traceparents": [TRACEPARENT]}, "trace_starts"),
        ({"trace_starts": [0], "traceparents": ["nonsense"]}, "traceparents"),
        ({"trace_starts": [0], "traceparents": [TRACEPARENT], "tracestates": ["x" * 513]}, "tracestates"),
    ],
)
async def test_a_router_rejects_columns_that_are_wrong(
    bench: RouterBench, columns: dict[str, list[object]], field: str
) -> None:
    call = await bench.open()
    batch = CallBatch(first_call_id=1, payloads=[b"a", b"b"], **columns)  # type: ignore[arg-type]  # one is wrong
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[batch])))
    rejected = (await next_frame(call)).rejected
    assert (rejected.failure.reason, rejected.failure.metadata["field"]) == ("BAD_REQUEST", field)


async def test_keys_that_differ_travel_as_one_batch(bench: RouterBench) -> None:
    (replica, _) = bench.replicas
    await bench.with_slots(1, replica)
    replica.answer = hold
    call = await bench.open()
    await call.write(calls(1, b"first"))
    await wait_until(lambda: len(replica.runs) == 1)
    batches = [
        CallBatch(
            first_call_id=10 + 2 * at,
            payloads=[b"a", b"b"],
            options=call_pb2.CallOptions(shard_key=shard, affinity_key=affinity),
        )
        for at, (shard, affinity) in enumerate([("s", "a"), ("t", "a"), ("", "b"), ("", "")])
    ]
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=batches)))
    await call.write(Request(heartbeat=call_pb2.Heartbeat(stamp=1)))
    await next_frame(call)  # the router has read all before it
    replica.answer = echo
    await bench.with_slots(100, replica)
    await wait_until(lambda: len(replica.runs) == 2)
    run = replica.runs[1]
    assert list(run.origins.shard_keys) == ["s", "s", "t", "t", "", "", "", ""]
    assert list(run.origins.affinity_keys) == ["a", "a", "a", "a", "b", "b", "", ""]
    assert (run.options.shard_key, run.options.affinity_key) == ("", "")


async def test_calls_that_are_sent_again_keep_their_trace(bench: RouterBench) -> None:
    (replica, _) = bench.replicas
    await bench.linked(replica)
    unanswered = [call_pb2.IdRange(first=1, last=2)]
    call = await bench.open(session_id="7ace" * 8, epoch=2, unanswered=unanswered, rosters=[bench.roster])
    resent = CallBatch(
        first_call_id=1, payloads=[b"a", b"b"], resend=True, trace_starts=[1], traceparents=[TRACEPARENT]
    )
    resent.first_roster.CopyFrom(bench.roster)
    resent.age.FromSeconds(7)
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[resent], resent_all=True)))
    await wait_until(lambda: any(frame.HasField("reconcile") for frame in replica.frames))
    nothing = replica_service_pb2.SessionCalls(session_id="7ace" * 8, epoch=2)
    await replica.say(replica_service_pb2.ExecuteResponse(reconciled=replica_service_pb2.Reconciled(joined=[nothing])))
    await outcomes(call, 2)
    assert [(list(run.payloads), spread(run)) for run in replica.runs] == [([b"a", b"b"], ["", TRACEPARENT])]
    assert replica.runs[0].waited_us >= 7_000_000
