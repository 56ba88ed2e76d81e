"""A real OpenTelemetry collector for tests: takes OTLP over gRPC as users' collectors do, and hands it to the test.

`make otel-collector` builds it; tests that need it are skipped, and say so, where it is not there.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.mesh import ROOT
from tests.support.wait import wait_until, within

BINARY: Final = ROOT / ".tools/otelcol"
CONFIG: Final = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{otlphttp: {{endpoint: "http://127.0.0.1:{sink}", encoding: json, compression: none,
  sending_queue: {{enabled: false}}}}}}
service:
  telemetry: {{metrics: {{level: none}}, logs: {{level: warn}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [otlphttp]}}
    metrics: {{receivers: [otlp], exporters: [otlphttp]}}
"""

needs_collector = pytest.mark.skipif(
    not BINARY.exists(), reason="NO COLLECTOR: `make otel-collector` builds it; nothing shows that telemetry arrives"
)


@dataclass(frozen=True)
class SeenSpan:
    """A span as the collector has it."""

    service: str
    instance: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(compare=False)
    links: tuple[str, ...] = ()
    """Ids of spans."""
    error: str = ""
    """Of a span that says that it has failed: why."""


class Collector:
    """What has come to it."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.raw: list[bytes] = []
        """All requests."""
        self._lock = threading.Lock()
        self._spans: list[SeenSpan] = []
        self._metrics: set[str] = set()

    def take(self, path: str, body: bytes) -> None:
        document = json.loads(body)
        with self._lock:
            self.raw.append(body)
            if path.endswith("/traces"):
                self._spans += _spans(document)
            else:
                self._metrics.update(
                    metric["name"]
                    for resource in document.get("resourceMetrics", ())
                    for scope in resource.get("scopeMetrics", ())
                    for metric in scope.get("metrics", ())
                )

    @property
    def spans(self) -> list[SeenSpan]:
        with self._lock:
            return self._spans.copy()

    @property
    def metrics(self) -> set[str]:
        with self._lock:
            return self._metrics.copy()

    async def until_spans(self, *names: str, timeout: float = 30.0) -> list[SeenSpan]:
        """Waits until there are spans of these names, or more precisely: names that begin so."""
        await wait_until(
            lambda: all(any(span.name.startswith(name) for span in self.spans) for name in names),
            timeout=timeout,
            what=f"spans {names}",
        )
        return self.spans


@asynccontextmanager
async def collector(folder: Path) -> AsyncIterator[Collector]:
    """A collector that listens, for as long as the block lasts."""
    port = _free_port()
    seen = Collector(port)

    class Sink(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
            """The test says what matters."""

    sink = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    sink.daemon_threads = True
    threading.Thread(target=sink.serve_forever, args=(0.05,), daemon=True).start()
    config = folder / "collector.yaml"
    config.write_text(CONFIG.format(port=port, sink=sink.server_port))
    process = await asyncio.create_subprocess_exec(
        BINARY, "--config", f"file:{config}", stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
    )
    try:
        await wait_until(lambda: process.returncode is not None or _listens(port), timeout=60, what="the collector")
        assert process.returncode is None, (await process.stderr.read()).decode() if process.stderr else ""
        yield seen
    finally:
        if process.returncode is None:
            process.terminate()
        await within(process.communicate(), "the end of the process", timeout=60.0)
        sink.shutdown()
        sink.server_close()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _spans(document: dict[str, Any]) -> list[SeenSpan]:
    return [
        SeenSpan(
            service=str(of.get("service.name", "")),
            instance=str(of.get("service.instance.id", "")),
            name=span["name"],
            trace_id=span["traceId"],
            span_id=span["spanId"],
            parent_id=span.get("parentSpanId", ""),
            start_ns=int(span["startTimeUnixNano"]),
            end_ns=int(span["endTimeUnixNano"]),
            attributes=_attributes(span),
            links=tuple(link["spanId"] for link in span.get("links", ())),
            error=span.get("status", {}).get("message", "") if span.get("status", {}).get("code") == 2 else "",
        )
        for resource in document.get("resourceSpans", ())
        for of in [_attributes(resource.get("resource", {}))]
        for scope in resource.get("scopeSpans", ())
        for span in scope.get("spans", ())
    ]


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values()), None) for each in holder.get("attributes", ())}
