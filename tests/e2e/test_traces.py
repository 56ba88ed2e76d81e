"""Traces of real processes, as a real collector gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import slotmesh
from slotmesh.cli.operator import Operator
from slotmesh.v1 import controller_service_pb2 as pb
from tests.e2e.secretive_handlers import SECRETS
from tests.support.collector import Collector, SeenSpan, collector, needs_collector
from tests.support.http_client import http
from tests.support.mesh import started_mesh
from tests.support.metrics import scraped_text
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180), needs_collector]

HANDLERS = "tests.e2e.traced_handlers"
SLACK_NS = 1_000_000
"""By how much two processes may read the clock of one machine differently."""


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
    """The test's process has a tracer set up, as an application has."""
    provider = TracerProvider(resource=Resource({"service.name": "client"}), shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr("slotmesh.client.calls.call_spans._TRACER", provider.get_tracer("slotmesh"))
    yield provider
    provider.shutdown()


def send_to(provider: TracerProvider, seen: Collector) -> None:
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=seen.endpoint, insecure=True)))


def environment(seen: Collector, ratio: str = "0") -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": seen.endpoint, "SLOTMESH_TRACING_RATIO": ratio}


def named(spans: list[SeenSpan], beginning: str) -> SeenSpan:
    (found,) = [span for span in spans if span.name.startswith(beginning)]
    return found


def assert_inside(child: SeenSpan, parent: SeenSpan) -> None:
    assert child.parent_id == parent.span_id, f"{child} is not a child of {parent}"
    assert child.trace_id == parent.trace_id
    assert parent.start_ns - SLACK_NS <= child.start_ns <= child.end_ns <= parent.end_ns + SLACK_NS, (child, parent)


def assert_chain(spans: list[SeenSpan], *, is_batch: bool) -> None:
    """The spans of one call, each inside its parent."""
    client, router, replica = named(spans, "call "), named(spans, "route "), named(spans, "replica Traced")
    handler, own = named(spans, "handler "), named(spans, "own ")
    assert_inside(router, client)
    assert_inside(named(spans, "router queue"), router)
    assert_inside(replica, router)
    assert_inside(named(spans, "replica queue"), replica)
    batch = named(spans, "batch ") if is_batch else replica
    if is_batch:
        assert_inside(batch, replica)
    assert_inside(handler, batch)
    assert_inside(own, handler)
    assert (client.service, router.service, replica.service) == ("client", "slotmesh-router", "slotmesh-replica")
    assert router.attributes["slotmesh.endpoint"] == client.attributes["slotmesh.endpoint"]
    assert router.attributes["slotmesh.replica.id"] == replica.instance


@pytest.mark.long
@pytest.mark.parametrize("handler", ["Traced", "TracedOnItsOwnLoop"])
async def test_one_call_among_a_thousand_is_seen_from_the_client_to_the_handler(
    handler: str, tmp_path: Path, tracer: TracerProvider
) -> None:
    methods = ("waits", "at_once", "threaded", "batched", "in_thread_batched")
    async with collector(tmp_path) as seen:
        send_to(tracer, seen)
        async with (
            started_mesh(f"{HANDLERS}:{handler}", env=environment(seen)) as mesh,
            slotmesh.connect(mesh.router_address) as client,
        ):
            endpoint = client.endpoint(handler)
            for method in methods:
                plain, traced = endpoint.method(method), endpoint.options(traced=True).method(method)
                calls = [plain(number) for number in range(500)]
                calls.append(traced(500))
                calls += [plain(number) for number in range(501, 1000)]
                assert await asyncio.gather(*calls) == list(range(1000))
        for method in methods:
            mine = [
                span for span in seen.spans if span.trace_id == named(seen.spans, f"call {handler}.{method}").trace_id
            ]
            assert_chain(mine, is_batch=method.endswith("batched"))
        assert len({span.trace_id for span in seen.spans}) == len(methods), "calls that nobody sampled have spans"


@pytest.mark.long
@pytest.mark.parametrize("method", ["generated", "generated_in_thread"])
async def test_handlers_that_yield_are_seen(method: str, tmp_path: Path, tracer: TracerProvider) -> None:
    async with collector(tmp_path) as seen:
        async with (
            started_mesh(f"{HANDLERS}:Traced", env=environment(seen, "1")) as mesh,
            slotmesh.connect(mesh.router_address) as client,
        ):
            assert [each async for each in client.endpoint("Traced").method(method).stream(7)] == [7]
        router, replica, handler = (named(seen.spans, each) for each in ("route ", "replica Traced", "handler "))
        assert not router.parent_id, "it begins at the router"
        assert_inside(replica, router)
        assert_inside(handler, replica)
        assert_inside(named(seen.spans, "own 7"), handler)


@pytest.mark.long
async def test_sampled_calls_of_a_batch_are_linked_and_failures_say_their_reason(
    tmp_path: Path, tracer: TracerProvider
) -> None:
    async with collector(tmp_path) as seen:
        send_to(tracer, seen)
        async with (
            started_mesh(f"{HANDLERS}:Traced", env=environment(seen)) as mesh,
            slotmesh.connect(mesh.router_address) as client,
        ):
            traced = client.endpoint("Traced").options(traced=True)
            assert await asyncio.gather(*[traced.batched(number) for number in range(3)]) == [0, 1, 2]
            with pytest.raises(slotmesh.HandlerError) as caught:
                await traced.fails(1)
        batches = [span for span in seen.spans if span.name.startswith("batch ")]
        (first,) = [span for span in batches if len(span.links) == 2]
        others = [span for span in batches if span is not first]
        assert [span.links for span in others] == [(first.span_id,)] * 2
        assert len({span.trace_id for span in batches}) == 3
        failed = [span for span in seen.spans if span.error]
        assert {span.name.split()[0] for span in failed} == {"call", "route", "replica", "handler"}
        assert {span.error for span in failed} == {"HANDLER_ERROR"}
        (ref,) = {span.attributes["slotmesh.log_ref"] for span in failed}
        assert ref == caught.value.metadata["log_ref"]


async def test_a_request_of_http_is_seen_from_its_client_to_the_handler(tmp_path: Path) -> None:
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with collector(tmp_path) as seen:
        async with started_mesh(f"{HANDLERS}:Traced", env=environment(seen), flags=["--http=0"]) as mesh:
            await http(mesh.http_address, "POST", "/Traced/at_once", [1])  # in no trace
            headers = {"traceparent": f"00-{trace_id}-{parent_id}-01"}
            assert (await http(mesh.http_address, "POST", "/Traced/waits", [7], headers)).json == 7
        ingress, router, replica = (named(seen.spans, each) for each in ("POST ", "route ", "replica Traced"))
        assert (ingress.trace_id, ingress.parent_id) == (trace_id, parent_id)
        assert (ingress.service, bool(ingress.instance)) == ("slotmesh-ingress", True)
        assert_inside(router, ingress)
        assert_inside(named(seen.spans, "router queue"), router)
        assert_inside(replica, router)
        assert_inside(named(seen.spans, "replica queue"), replica)
        assert_inside(named(seen.spans, "handler "), replica)
        assert {span.trace_id for span in seen.spans} == {trace_id}


@pytest.mark.long
async def test_of_many_calls_with_one_parent_some_are_sampled(tmp_path: Path, tracer: TracerProvider) -> None:
    async with collector(tmp_path) as seen:
        send_to(tracer, seen)
        async with (
            started_mesh(f"{HANDLERS}:Traced", env=environment(seen)) as mesh,
            slotmesh.connect(mesh.router_address) as client,
        ):
            numbers = range(400)
            assert await client.endpoint("Traced").options(traced=True).at_once.map(numbers) == list(numbers)
        routed = [span for span in seen.spans if span.name.startswith("route ")]
        handled = [span for span in seen.spans if span.name.startswith("handler ")]
        assert len(routed) == len(handled) == 16 * len({span.start_ns for span in routed}), "16 of each frame"
        assert len([span for span in seen.spans if span.name.startswith("call ")]) == 1


@pytest.mark.long
async def test_no_span_has_a_secret(tmp_path: Path, tracer: TracerProvider) -> None:
    async with collector(tmp_path) as seen:
        send_to(tracer, seen)
        secretive, flags = "tests.e2e.secretive_handlers:Secretive", ["--log-level=debug"]
        async with (
            started_mesh(secretive, env=environment(seen, "1"), flags=flags) as mesh,
            slotmesh.connect(mesh.router_address) as client,
        ):
            view = client.endpoint("Secretive").options(metadata={"tenant": SECRETS["metadata"]}, traced=True)
            for each in (view.ordered(SECRETS["key"]), view.options(shard_key=SECRETS["shard"])):
                for method in ("coroutine", "at_once", "threaded", "batched", "batched_in_thread"):
                    with pytest.raises(slotmesh.HandlerError):
                        await each.method(method)(SECRETS["argument"])
            with pytest.raises(slotmesh.BadArguments):
                await view.number(SECRETS["argument"])
            async with client.endpoint("Secretive").reserve() as slot:
                tokens = [str(slot.token)]
            async with Operator.at(mesh.controller_address) as operator:
                members = await operator.members()
                wanted = pb.WatchEventsRequest(from_oldest=True, until_newest=True)
                events = [str(event) async for event in operator.stream(wanted)]
            addresses = [
                *(it.metrics_address for it in members.routers),
                *(it.metrics_address for it in members.replicas),
            ]
            log = mesh.log_text()
            pages = [await scraped_text(each) for each in addresses]
        assert len([span for span in seen.spans if span.error]) > 20
        written = b"".join(seen.raw).decode() + log + "".join(pages) + "".join(events)
        for secret in (*SECRETS.values(), *tokens):
            assert secret not in written


@pytest.mark.long
async def test_metrics_are_pushed_beside_the_page(tmp_path: Path) -> None:
    wanted = {
        "slotmesh.router.calls",
        "slotmesh.router.call.time",
        "slotmesh.replica.calls",
        "rpc.server.call.duration",
    }
    async with collector(tmp_path) as seen:
        env = environment(seen) | {"OTEL_METRIC_EXPORT_INTERVAL": "200"}
        async with (
            started_mesh(f"{HANDLERS}:Traced", env=env) as mesh,
            slotmesh.connect(mesh.router_address) as client,
        ):
            assert await client.endpoint("Traced").waits(1) == 1
            await wait_until(lambda: wanted <= seen.metrics, timeout=30, what="metrics at the collector")


@pytest.mark.long
async def test_a_collector_that_is_away_holds_nothing_up(tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "SLOTMESH_TRACING_RATIO": "1"}
    async with (
        started_mesh(f"{HANDLERS}:Traced", env=env) as mesh,
        slotmesh.connect(mesh.router_address) as client,
    ):
        assert await client.endpoint("Traced").at_once.map(range(20_000)) == list(range(20_000))
        await wait_until(lambda: "not take traces" in mesh.log_text(), timeout=60, what="the warning")
