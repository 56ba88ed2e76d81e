"""One trace from the HTTP client to the handler; and failures that are found in the log by their id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan
from websockets.asyncio.client import connect

import slotmesh
from ingress_service.shell import request_spans
from router_service.shell.clients.unary import HandedMetadata
from slotmesh.spec.routes import Route
from slotmesh.telemetry.setup_tracing import TracingSetup
from tests.support.http_client import http_connection
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.spans import KeptSpans, error_of, ids_of_span, parent_of_span
from tests.support.wait import wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED, UNSAMPLED = (f"00-{TRACE}-{PARENT}-{flags}" for flags in ("01", "00"))
EVENTS = {"accept": "text/event-stream"}
ROUTES = (Route(path="/words/{word}", endpoint="told", method="parent", methods=("GET",)),)


class Told:
    """What the handler knows of the trace."""

    async def parent(self, word: str = "") -> list[str]:
        told = slotmesh.context()
        return [told.traceparent, told.tracestate]

    async def parents(self) -> AsyncIterator[str]:
        yield slotmesh.context().traceparent

    async def fail(self) -> None:
        raise ValueError("hush")

    async def fail_later(self) -> AsyncIterator[int]:
        yield 1
        raise ValueError("hush")

    async def wait(self) -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()


class Traced:
    """A mesh whose ingress makes spans."""

    def __init__(self, served: ServedMesh, kept: KeptSpans) -> None:
        self.served = served
        self.kept = kept

    async def spans(self, count: int = 1) -> list[ReadableSpan]:
        """So many, which have ended."""
        await wait_until(lambda: len(self.kept.ended) >= count, what=f"{count} spans")
        return list(self.kept.ended)

    async def span(self) -> ReadableSpan:
        (span,) = await self.spans()
        return span


@asynccontextmanager
async def spans_kept(*, ratio: float) -> AsyncIterator[KeptSpans]:
    """Of ingresses that begin in the block, and sample this share of calls by themselves."""
    kept = KeptSpans()
    with pytest.MonkeyPatch.context() as patch:
        setup = TracingSetup(kept.tracing(ratio, 10.0))
        patch.setattr("ingress_service.app.setup_tracing", lambda *_: setup)
        # Routers that make spans take the contexts of rpcs; this one makes none, so that handlers see the ingress's.
        patch.setattr("router_service.app.HandedMetadata", lambda keys, **_: HandedMetadata(keys, with_traces=True))
        yield kept


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh_and_spans() -> AsyncIterator[tuple[ServedMesh, KeptSpans]]:
    async with spans_kept(ratio=0.0) as kept, served_mesh({"told": Told}, *ROUTES) as served:
        yield served, kept


@pytest.fixture
def traced(mesh_and_spans: tuple[ServedMesh, KeptSpans]) -> Traced:
    served, kept = mesh_and_spans
    kept.ended.clear()
    return Traced(served, kept)


pytestmark = pytest.mark.asyncio(loop_scope="module")


def ids_of(traceparent: str) -> tuple[str, str, str]:
    _, trace_id, span_id, flags = traceparent.split("-")
    return trace_id, span_id, flags


def said_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_sampled_request_has_a_span_between_its_client_and_the_mesh(traced: Traced) -> None:
    headers = {"traceparent": SAMPLED, "tracestate": "vendor=1"}
    answer = await traced.served.ask("POST", "/told/parent", [], headers)
    span = await traced.span()
    traceparent, tracestate = answer.json
    assert ids_of(traceparent) == (*ids_of_span(span), "01")
    assert ids_of_span(span)[0] == TRACE
    assert tracestate == "vendor=1"
    assert parent_of_span(span) == PARENT
    assert (span.name, span.kind.name) == ("POST /{endpoint}/{method}", "SERVER")
    assert said_of(span) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/{endpoint}/{method}",
        "network.protocol.version": "1.1",
        "slotmesh.endpoint": "told",
        "slotmesh.method": "parent",
        "url.path": "/told/parent",
        "url.scheme": "http",
    }


async def test_a_span_has_the_route_and_not_what_is_asked_for(traced: Traced) -> None:
    secret = "c0ffee"
    await traced.served.ask("GET", f"/words/{secret}", b"", {"traceparent": SAMPLED})
    await traced.served.ask("POST", f"/words/{secret}?{secret}={secret}", b"", {"traceparent": SAMPLED})
    await traced.served.ask("GET", f"/a/b/{secret}", b"", {"traceparent": SAMPLED})
    spans = await traced.spans(3)
    assert [span.name for span in spans] == ["GET /words/{word}", "POST /words/{word}", "GET"]
    assert [said_of(span)["http.response.status_code"] for span in spans] == [200, 405, 404]
    assert [said_of(span).get("url.path") for span in spans] == ["/words/{word}", "/words/{word}", None]
    assert secret not in "".join(span.to_json() for span in spans)
    assert all(error_of(span) is None for span in spans), "what the client got wrong is no error of the server"


async def test_a_request_that_is_not_sampled_goes_on_with_its_trace_and_without_a_span(traced: Traced) -> None:
    answer = await traced.served.ask("POST", "/told/parent", [], {"traceparent": UNSAMPLED, "tracestate": "a=1"})
    assert answer.json == [UNSAMPLED, "a=1"]
    for nonsense in ("nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", "00-" + "a" * 200):
        assert (await traced.served.ask("POST", "/told/parent", [], {"traceparent": nonsense})).json == ["", ""]
    assert (await traced.served.post("/told/parent")).json == ["", ""]
    assert not traced.kept.ended


async def test_lines_of_tracestate_are_one_list(traced: Traced) -> None:
    async with http_connection(traced.served.address) as connection:
        states = "tracestate: a=1\r\ntracestate: b=2\r\n"
        head = f"GET /words/x HTTP/1.1\r\nhost: x\r\ntraceparent: {UNSAMPLED}\r\n{states}\r\n"
        await connection.send(head.encode())
        assert (await connection.answer()).json == [UNSAMPLED, "a=1, b=2"]


async def test_values_and_sockets_belong_to_the_trace(traced: Traced) -> None:
    answer = await traced.served.ask("POST", "/told/parents", b"", {"traceparent": SAMPLED, **EVENTS})
    span = await traced.span()
    assert ids_of_span(span)[1].encode() in answer.body
    url = f"ws://{traced.served.address}/told/parent"
    async with connect(url, additional_headers={"traceparent": SAMPLED}) as socket:
        await socket.send("[]")
        assert json.loads(await socket.recv())["value"] == [SAMPLED, ""], "the handshake's, without a span of ours"


@pytest.mark.parametrize("version", ["", "/versions/told"])
async def test_inferences_belong_to_the_trace(traced: Traced, version: str) -> None:
    asked = {"inputs": [], "parameters": {"method": "parent"}}
    answer = await traced.served.ask("POST", f"/v2/models/told{version}/infer", asked, {"traceparent": SAMPLED})
    assert answer.status == 200, answer
    span = await traced.span()
    assert (span.name, said_of(span)["slotmesh.endpoint"]) == ("POST /v2/models/{model}/infer", "told")
    (output,) = answer.json["outputs"]
    assert ids_of(output["data"][0]) == (TRACE, ids_of_span(span)[1], "01")


async def test_requests_without_a_trace_are_drawn_by_the_ratio() -> None:
    async with spans_kept(ratio=1.0) as kept, served_mesh({"told": Told}) as served:
        answer = await served.post("/told/parent")
        span = await Traced(served, kept).span()
        assert not parent_of_span(span), "a trace begins"
        assert ids_of(answer.json[0])[:2] == ids_of_span(span)


async def test_of_many_whose_clients_sampled_them_so_many_a_second_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_spans, "MAX_FOLLOWED", 1.0)  # a slow machine does not send 200 a second
    async with (
        spans_kept(ratio=0.0),
        served_mesh({"told": Told}, *ROUTES) as served,
        http_connection(served.address) as connection,
    ):
        for _ in range(100):
            answer = await connection.request("GET", "/words/x", headers={"traceparent": SAMPLED})
            if answer.json[0] == UNSAMPLED:
                break
        else:
            pytest.fail("strangers can have all of their requests traced")


async def test_of_messages_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_spans, "MAX_FOLLOWED", 1.0)
    async with (
        spans_kept(ratio=0.0),
        served_mesh({"told": Told}) as served,
        connect(f"ws://{served.address}/told/parent", additional_headers={"traceparent": SAMPLED}) as socket,
    ):
        for _ in range(100):
            await socket.send("[]")
            value, _end = await socket.recv(), await socket.recv()
            if json.loads(value)["value"][0] == UNSAMPLED:
                return
    pytest.fail("whoever opens a socket can have all of its messages traced")


async def test_failures_are_errors_where_they_are_the_meshs(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answer = await traced.served.ask("POST", "/told/fail", [], {"traceparent": SAMPLED})
    span = await traced.span()
    said = said_of(span)
    assert (said["slotmesh.reason"], said["slotmesh.executed"], said["error.type"]) == (
        "HANDLER_ERROR",
        "yes",
        "HANDLER_ERROR",
    )
    ref = answer.json["log_ref"]
    assert said["slotmesh.log_ref"] == ref
    assert error_of(span) == "HANDLER_ERROR"
    lines = [line for line in caplog.messages if ref in line and "a request failed" in line]
    assert len(lines) == 1
    for fact in ("route=_default", "status=500", "reason=HANDLER_ERROR", "executed=yes", f"trace_id={TRACE}"):
        assert fact in lines[0]
    assert "hush" not in lines[0]


@pytest.mark.parametrize(("body", "form", "status"), [(b"x", "text/css", 415), (b"[1,2,3]", "application/json", 400)])
async def test_what_is_refused_is_found_in_the_log_of_the_ingress(
    traced: Traced, caplog: pytest.LogCaptureFixture, body: bytes, form: str, status: int
) -> None:
    caplog.set_level("INFO")
    answer = await traced.served.ask("POST", "/told/parent", body, {"content-type": form})
    assert answer.status == status
    lines = [line for line in caplog.messages if answer.json["log_ref"] in line and "a request failed" in line]
    assert len(lines) == 1
    assert "route=_default" in lines[0]


async def test_what_fails_after_its_first_value_has_an_id_as_well(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    answer = await traced.served.ask("POST", "/told/fail_later", b"", {"traceparent": SAMPLED, **EVENTS})
    problem = json.loads(answer.body.partition(b"event: error\ndata: ")[2].partition(b"\n")[0])
    span = await traced.span()
    assert said_of(span)["slotmesh.log_ref"] == problem["log_ref"]
    assert any(problem["log_ref"] in line and "a request failed" in line for line in caplog.messages)


async def test_who_leaves_ends_the_span(traced: Traced) -> None:
    async with http_connection(traced.served.address) as connection:
        head = f"POST /told/wait HTTP/1.1\r\nhost: x\r\ntraceparent: {SAMPLED}\r\naccept: text/event-stream\r\n"
        await connection.send(f"{head}content-length: 0\r\n\r\n".encode())
        await connection.head()
    span = await traced.span()
    assert (said_of(span)["slotmesh.outcome"], error_of(span)) == ("client left", None)
