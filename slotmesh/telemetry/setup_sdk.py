"""The OpenTelemetry SDK for metrics, set up by the first scrape.

Purpose: importing the SDK and its exporter takes a sixth of the processor time of a process's start, and the first
scrape comes seconds later.
Invariants: instruments registered before the first scrape are exported by it; they are observable, so that no count is
lost before. The set-up runs once, in the thread of the first scrape.
Owner: `slotmesh.telemetry.setup`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import Meter, NoOpMeter

from slotmesh.telemetry.exports import Exports
from slotmesh.telemetry.instruments import ReadBuckets
from slotmesh.telemetry.names import INSTANCE, SERVICE_NAME, Metric

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    from slotmesh.config.otlp import OtlpTarget
    from slotmesh.telemetry.setup_handlers import HandlerMetrics
    from slotmesh.telemetry.setup_readers import Bridge, PageRegistry, PushingReader

_METER: Final = "slotmesh"


class WaitingMeter(NoOpMeter):
    """Keeps the registrations of instruments until the SDK's meter exists."""

    def __init__(self) -> None:
        super().__init__(_METER)
        self._lock = threading.Lock()
        self._waiting: list[Callable[[Meter], object]] = []
        self._meter: Meter | None = None

    def create_observable_counter(self, *args: Any, **options: Any) -> Any:
        self._register(lambda meter: meter.create_observable_counter(*args, **options))

    def create_observable_gauge(self, *args: Any, **options: Any) -> Any:
        self._register(lambda meter: meter.create_observable_gauge(*args, **options))

    def _register(self, create: Callable[[Meter], object]) -> None:
        with self._lock:
            if self._meter is None:
                self._waiting.append(create)
            else:
                create(self._meter)

    def use(self, meter: Meter) -> None:
        """Registers all kept instruments with this meter, and later ones directly."""
        with self._lock:
            self._meter = meter
            for create in self._waiting:
                create(meter)
            self._waiting.clear()


class SdkMetrics:
    """The SDK of one service, set up on demand."""

    def __init__(self, service_name: str, *, otlp: OtlpTarget | None, instance: str, has_page: bool) -> None:
        """Sets up the SDK immediately if metrics are pushed. Raises CannotStart."""
        self.meter = WaitingMeter()
        self._service_name = service_name
        self._sources: list[tuple[Metric, ReadBuckets]] = []
        self._started_ns = time.time_ns()
        self._has_page = has_page
        self._lock = threading.Lock()
        self._provider: MeterProvider | None = None
        self._registry: PageRegistry | None = None
        self._resource: Resource | None = None
        self._handlers: HandlerMetrics | None = None
        self._otlp = otlp
        self._exports = Exports("metrics")
        self._push: PushingReader | None = None
        self._push_bridge = None if otlp is None else self._bridge()
        if otlp is not None and self._push_bridge is not None:
            from slotmesh.telemetry.setup_readers import PushingReader  # noqa: PLC0415 - for who pushes metrics

            self._push = PushingReader(otlp, self._push_bridge, self._exports)
            self._set_up(instance)

    def observe_histogram(self, metric: Metric, read: ReadBuckets) -> None:
        """Exports the histograms that `read` returns, called in the scraping thread."""
        self._sources.append((metric, read))

    def _bridge(self) -> Bridge:
        from slotmesh.telemetry.setup_readers import Bridge  # noqa: PLC0415 - see the head of the module

        return Bridge(self._sources, self._started_ns)

    def registry(self) -> PageRegistry:
        """The registry for the Prometheus text format. Thread-safe."""
        with self._lock:
            return self._registry if self._registry is not None else self._set_up("")

    def _set_up(self, instance: str) -> PageRegistry:
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - see the head of the module
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - likewise
        from prometheus_client import ProcessCollector  # noqa: PLC0415 - likewise

        from slotmesh.telemetry.setup_readers import BridgedReader, PageRegistry  # noqa: PLC0415 - likewise

        attributes = {SERVICE_NAME: self._service_name}
        resource = Resource(attributes)
        if self._push is not None:
            resource = Resource.create({**attributes, **({INSTANCE: instance} if instance else {})})
        self._resource = resource
        self._registry = registry = PageRegistry()
        ProcessCollector(registry=registry)
        readers = [BridgedReader(registry, self._bridge())] if self._has_page else []
        self._provider = MeterProvider(
            [*readers, *([self._push] if self._push is not None else [])], resource, shutdown_on_exit=False
        )
        self.meter.use(self._provider.get_meter(_METER))
        return registry

    def use_for_handlers(self) -> None:
        """Exports the metrics of the handler in this process, too. Call it once the handler is constructed."""
        from slotmesh.telemetry.setup_handlers import HandlerMetrics  # noqa: PLC0415 - for replicas

        registry = self.registry()
        with self._lock:
            if self._resource is None or self._handlers is not None:
                return
            self._handlers = handlers = HandlerMetrics(self._resource, self._make_push if self._otlp else None)
        registry.beside = handlers.beside
        if self._push_bridge is not None:
            self._push_bridge.more = handlers.added_to
        handlers.use()

    def _make_push(self) -> PushingReader:
        from slotmesh.telemetry.setup_readers import Bridge, PushingReader  # noqa: PLC0415 - for who pushes metrics

        if self._otlp is None:
            raise RuntimeError("metrics are not pushed")
        return PushingReader(self._otlp, Bridge((), self._started_ns), self._exports)

    def page(self, accept: str) -> tuple[str, bytes]:
        """The page for Prometheus, in the format that `accept` requests: its content type and text. Blocks."""
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - see the head of the module

        registry = self.registry()
        encode, content_type = choose_encoder(accept)
        return content_type, encode(registry)

    def wsgi_page(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """The same page as a WSGI application."""
        from prometheus_client import make_wsgi_app  # noqa: PLC0415 - see the head of the module

        pages: Sequence[bytes] = make_wsgi_app(self.registry())(environ, start_response)
        return pages

    @property
    def exports(self) -> Exports | None:
        """How pushes go; None if metrics are not pushed."""
        return None if self._otlp is None else self._exports

    def last_pushes(self) -> list[Callable[[], object]]:
        """What pushes a last time, to be run at the same time. They block."""
        return [each.shutdown for each in (self._push, self._handlers) if each is not None]

    def shutdown(self) -> None:
        """Stops. May be called again."""
        if self._handlers is not None:
            self._handlers.shutdown()
        with self._lock:
            provider, self._provider = self._provider, None
        if provider is not None:
            provider.shutdown()
