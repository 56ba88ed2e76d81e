"""The router's composition root: the only file that names concrete classes.

Start: metrics, server (NOT_SERVING), membership; SERVING with the first routing table. Stop: go_away to clients,
NOT_SERVING, no new rpcs, pending calls get their grace period; the last acknowledgements are sent to replicas; then
links and tasks end.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from router_service import convert
from router_service.config import RouterSettings
from router_service.core.callers import Window
from router_service.core.limits.quotas import CallerQuotas, CallQuotas, SessionQuota
from router_service.core.plugged_balancers import PlugIns
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.scheduler import RouterScheduler
from router_service.core.tenants import TenantSettings
from router_service.inference_servicer import InferenceServicer
from router_service.own_rpc_servicer import OwnRpcServicer
from router_service.servicer import RouterServicer
from router_service.shell.balancer_loading import FaultLog, load_balancers
from router_service.shell.call_traces import RouterTraces
from router_service.shell.clients.connected_streams import Alternates
from router_service.shell.clients.unary import HandedMetadata, UnaryCalls
from router_service.shell.dispatcher import Dispatcher, FirstTable
from router_service.shell.failure_log import FailureLog
from router_service.shell.metrics import observe
from router_service.shell.replicas.link import ReplicaLink
from router_service.shell.reports import LinkReport
from router_service.shell.table_watch import TableWatch
from router_service.slot_servicer import RouterSlotServicer, UnarySlotOperations
from router_service.tap_servicer import TapServicer
from slotmesh.ids import new_id
from slotmesh.inference.grpc_inference_service_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.runtime.backoff import Backoff
from slotmesh.runtime.channels import Dialer
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.runtime.parent import LAUNCHER_ENDED, announce, watch_parent
from slotmesh.runtime.signals import stop_signals
from slotmesh.runtime.tasks import Supervisor
from slotmesh.security.identity import Role
from slotmesh.security.tokens import Tokens
from slotmesh.server.info_servicer import InfoServicer
from slotmesh.server.rpc_gate import observe_edge
from slotmesh.server.server import GrpcServer
from slotmesh.streams.limits import MAX_ROUTER_REQUEST_BYTES
from slotmesh.telemetry import names
from slotmesh.telemetry.security_metrics import observe_tokens
from slotmesh.telemetry.setup import MetricsServer, metrics_target, setup_metrics
from slotmesh.telemetry.setup_tracing import TracingSetup, setup_tracing
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.units import parse_names
from slotmesh.v1 import (
    info_service_pb2,
    info_service_pb2_grpc,
    router_service_pb2_grpc,
    slot_service_pb2_grpc,
    tap_service_pb2_grpc,
)
from slotmesh.version import VERSION

if TYPE_CHECKING:
    # Most of a second at its first import, for those who have certificates.
    from slotmesh.security.tls import TlsSource

LAST_ANSWERS_S = 1.0
"""How long clients have to read what was answered when the router stops."""
TASK_FAILED = "a part of it has failed, which its log names"
"""Why a router ends, for people."""
LAST_WORDS_S = 0.5
"""How long the last acknowledgements may take to reach replicas. Those that still run calls need not answer."""


async def main(settings: RouterSettings) -> None:
    """Runs a router until it is asked to stop."""
    with stop_signals(ignore_interrupt=settings.parent_fd is not None) as stop:
        if settings.parent_fd is not None:
            watch_parent(settings.parent_fd, partial(stop.ask, LAUNCHER_ENDED))
        async with serve(settings, partial(stop.ask, TASK_FAILED), lambda: stop.reason) as server:
            if settings.announce_fd is not None:
                announce(settings.announce_fd, server.address)
            await stop.wait()


@asynccontextmanager
async def serve(
    settings: RouterSettings, on_failure: Callable[[], object] | None = None, end_reason: Callable[[], str] = lambda: ""
) -> AsyncIterator[GrpcServer]:
    """A router on the running event loop, for as long as the block lasts. `end_reason`: why that ends, for people."""
    clock, watch = MonotonicClock(), None
    async with Supervisor(on_failure=on_failure) as tasks:
        scheduler = _scheduler(settings)
        links = LinkReport(scheduler)
        tls, tokens = settings.tls_source(Role.ROUTER), settings.token_verifier()
        dialer = Dialer(tls)

        def open_link(replica: RoutedReplica, dispatcher: Dispatcher) -> ReplicaLink:
            link = ReplicaLink(replica, dispatcher, links, settings.router_id, clock, dialer)
            link.start(tasks)
            return link

        dispatcher = Dispatcher(scheduler, clock, open_link)
        window = Window(calls=settings.window_calls, bytes=settings.window_bytes)
        quotas = _quotas(settings)
        unary = UnaryCalls(dispatcher, settings.max_pending_unary, quotas.calls)
        server = _server(settings, tls, tokens)
        dispatcher.failures = FailureLog()
        traces = _traced(dispatcher, settings)
        handed = HandedMetadata(parse_names(settings.call_metadata), with_traces=traces.tracing is not None)
        largest, turns = settings.max_payload_bytes, server.turns
        servicer = RouterServicer(
            dispatcher, unary, settings.router_id, window, largest, turns=turns, handed=handed, quotas=quotas
        )
        servicer.idle_heartbeat_s = settings.edge_limits.idle_heartbeat_s
        server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, servicer)
        _add_other_ways(server, dispatcher, unary, handed)
        taps = TapServicer(dispatcher, allows_payloads=settings.tap_payloads)
        server.add(tap_service_pb2_grpc.add_TapServiceServicer_to_server, taps)
        info = _info(settings, server, tls)
        metrics = _metrics(settings, tls, tokens)
        observe(metrics, scheduler, dispatcher.counts, servicer.unread)
        try:
            _observe_process(metrics, server, traces, quotas)
            info.exports = (traces.exports, metrics.exports)
            await server.start()
            own, info.address = servicer.alternates, settings.advertised(server.address)
            own.address, own.token_address = info.address, settings.advertised_token(server.token_address or "")
            hello = _hello(settings, own, metrics.address)
            watch = TableWatch(ServerAddresses(settings.controller), hello, dispatcher, links, Backoff(), dialer)
            links.on_change = watch.report_soon
            dispatcher.report_load = watch.load_waits
            tasks.keep(watch.run, name="table watch", until=lambda: watch.is_over)
            tasks.keep(watch.tick, name="reports")
            tasks.start(_serve_with_table(dispatcher.first_table, server), name="readiness")
            yield server
            server.set_serving(False)
            watch.ends(end_reason())
            await servicer.drain("the router stops", settings.graceful_timeout.total_seconds())
        finally:
            taps.leave()
            await server.stop(LAST_ANSWERS_S)
            await _say_last_words(dispatcher, watch)
            await asyncio.gather(metrics.aclose(), traces.aclose())


async def _say_last_words(dispatcher: Dispatcher, watch: TableWatch | None) -> None:
    """To replicas, then to the controller; the dispatcher closes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            await dispatcher.links.finish()
    if watch is not None:
        await watch.goodbye()
    dispatcher.close()


def _add_other_ways(server: GrpcServer, dispatcher: Dispatcher, unary: UnaryCalls, handed: HandedMetadata) -> None:
    """Slots, inferences, and rpcs of users' own protos."""
    slots = RouterSlotServicer(UnarySlotOperations(dispatcher, unary), handed, server.turns)
    server.add(slot_service_pb2_grpc.add_SlotServiceServicer_to_server, slots)
    inference = InferenceServicer(dispatcher, unary, handed, lambda: server.serving)
    server.add(add_GRPCInferenceServiceServicer_to_server, inference)
    server.add_own(OwnRpcServicer(dispatcher, unary, handed))


def _scheduler(settings: RouterSettings) -> RouterScheduler:
    tenants = TenantSettings(settings.max_tenants, settings.max_shown_tenants)
    return RouterScheduler(
        random.random,
        max_upload_bytes=settings.max_upload_bytes,
        tenants=tenants,
        subset_size=settings.subset_size,
        prefix_blocks=settings.prefix_blocks,
        plug_ins=PlugIns(
            makers=load_balancers(parse_names(settings.balancers)),
            now=time.perf_counter,
            budget_s=settings.balancer_budget.total_seconds(),
            metadata_of=convert.ShownMetadata(parse_names(settings.balancer_metadata)),
            report=FaultLog(time.monotonic),
        ),
        zone=settings.zone,
    )


def _quotas(settings: RouterSettings) -> CallerQuotas:
    return CallerQuotas(
        CallQuotas(settings.max_calls_per_caller, settings.max_bytes_per_caller),
        SessionQuota(settings.max_sessions_per_caller),
    )


def _server(settings: RouterSettings, tls: TlsSource | None, tokens: Tokens | None) -> GrpcServer:
    return GrpcServer(
        "router",
        host=settings.host,
        port=settings.port,
        insecure=settings.insecure,
        channelz=settings.channelz,
        limits=replace(settings.edge_limits, max_request_bytes=MAX_ROUTER_REQUEST_BYTES),
        tls=tls,
        token_port=settings.token_port,
        tokens=tokens,
    )


def _info(settings: RouterSettings, server: GrpcServer, tls: TlsSource | None) -> InfoServicer:
    kind = info_service_pb2.SERVER_KIND_ROUTER
    info = InfoServicer(kind, server_id=settings.router_id, tls=tls)
    server.add(info_service_pb2_grpc.add_InfoServiceServicer_to_server, info)
    return info


def _traced(dispatcher: Dispatcher, settings: RouterSettings) -> TracingSetup:
    """Has the dispatcher make spans, where there is a collector."""
    traces = setup_tracing("slotmesh-router", settings, {names.INSTANCE: settings.router_id})
    if traces.tracing is not None:
        dispatcher.traces = RouterTraces(traces.tracing, settings.router_id)
    return traces


def _metrics(settings: RouterSettings, tls: TlsSource | None, tokens: Tokens | None) -> MetricsServer:
    metrics = setup_metrics(
        "slotmesh-router",
        settings.metrics_host,
        settings.metrics_port,
        otlp=metrics_target(settings),
        instance=settings.router_id,
        tls=tls,
        tokens=tokens,
    )
    if tokens is not None:
        observe_tokens(metrics.meter, tokens)
    return metrics


def _observe_process(metrics: MetricsServer, server: GrpcServer, traces: TracingSetup, quotas: CallerQuotas) -> None:
    observe_edge(metrics.meter, server.edge, quotas.all)
    metrics.look_at(lambda: server.serving)
    metrics.observe_rpcs(server.rpc_times)
    metrics.observe_spans(lambda: traces.dropped)


def _hello(
    settings: RouterSettings, own: Alternates, metrics_address: str | None
) -> membership_service_pb2.RouterHello:
    """Who this start of the router is. `metrics_address` is None if there are no metrics."""
    hello = membership_service_pb2.RouterHello(
        router_id=settings.router_id,
        address=own.address,
        token_address=own.token_address,
        version=VERSION,
        metrics_address=settings.advertised_metrics(metrics_address) if metrics_address else "",
        incarnation=new_id(),
        pid=os.getpid(),
    )
    hello.start_time.FromMicroseconds(round(MonotonicClock().time_of_day() * 1e6))
    return hello


async def _serve_with_table(first_table: FirstTable, server: GrpcServer) -> None:
    await first_table.wait()
    server.set_serving()
