"""Measures the mesh on this machine, one part after another: `python -m benchmarks [PART …]`.

A figure that is not as expected is printed and is no failure: machines differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks import (
    applications,
    balancer_cost,
    batching,
    core,
    endpoints,
    executors,
    findings,
    flood,
    hops,
    http,
    idle,
    inference,
    large,
    latency,
    loads,
    memory,
    metrics_cost,
    overload,
    profiling,
    protos,
    report,
    scaling,
    security_cost,
    sessions_cost,
    slow_calls,
    stalled,
    tables,
    tenants,
    tracing_cost,
    two_step,
)
from benchmarks.findings import Finding
from benchmarks.progress import begin
from benchmarks.workloads import PAYLOAD
from slotmesh.runtime.main import run
from slotmesh.units import parse_duration

RESULTS: Final = Path("benchmarks/results/latest.local.json")
LOADS: Final = "loads"
TITLES: Final = {
    LOADS: "throughput and latency, beside a bare gRPC server",
    "latency": "one call at a time",
    "hops": "one call at a time, hop by hop",
    "applications": "applications that set nothing, and their event loops",
    "scaling": "more replicas, routers and clients",
    "two-step": "reserve, then dispatch",
    "batching": "how long calls wait for their batch",
    "vectorised": "a vectorised handler through the mesh",
    "slow-calls": "ten thousand calls that wait",
    "core": "cost of the router's decisions",
    "executors": "cost of executing a call, by kind of method",
    "memory": "memory of queued calls",
    "tables": "routing tables of 10,000 replicas",
    "endpoints": "10,000 endpoints in one apply",
    "metrics": "cost of metrics",
    "balancer": "cost of a balancer of the user's own",
    "tracing": "cost of traces",
    "sessions": "cost of sessions",
    "idle": "a mesh in which nothing happens",
    "security": "cost of TLS and tokens",
    "protos": "rpcs of users' own protos",
    "http": "calls by HTTP, beside a bare uvicorn and Starlette",
    "oip": "inferences by the Open Inference Protocol, beside calls and MLServer",
    "large": "small calls beside large payloads",
    "payloads": "payloads of 100 bytes to 8 MB, beside a bare gRPC server",
    "stalled": "a client that does not read",
    "overload": "twice the load that can be served",
    "flood": "one call at a time beside a flood",
    "tenants": "two tenants of one client",
}
USUAL: Final = (
    *(LOADS, "latency", "two-step", "batching", "vectorised", "slow-calls"),
    *(
        "core",
        "executors",
        "memory",
        "tables",
        "endpoints",
        "balancer",
        "metrics",
        "tracing",
        "sessions",
        "security",
        "large",
        "http",
        "oip",
    ),
)
"""Measured by default: the parts that take a few minutes in all."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures the mesh on this machine.")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(TITLES)}, or all (default: {' '.join(USUAL)})"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not a measurement")
    parser.add_argument("--rounds", type=int, help="rounds of all loads (default: 5, or 2 with --quick)")
    parser.add_argument("--seconds", type=float, help="time of a load in a round (default: 1.5, or 0.3 with --quick)")
    parser.add_argument("--only", metavar="NAME[,NAME…]", help="loads to measure beside the bare server")
    parser.add_argument(
        "--duration", type=_duration, metavar="DURATION", help="of the overload (default: 60s, or 8s with --quick)"
    )
    parser.add_argument(
        "--call-timeout", type=_duration, metavar="DURATION", help="of each call of the overload (default: none)"
    )
    parser.add_argument(
        "--stalled",
        type=_duration,
        metavar="DURATION",
        help="how long the client does not read (default: 60s, or 5s with --quick)",
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS, metavar="FILE", help="where to write the results (default: %(default)s)"
    )
    parser.add_argument(
        "--profile",
        choices=profiling.COMPONENTS,
        help="also say where the time of this process goes under the loads; figures suffer",
    )
    settings = parser.parse_args(arguments)
    if unknown := [part for part in settings.parts if part not in {*TITLES, "all"}]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(TITLES)}, and all")
    if "all" in settings.parts:
        settings.parts = list(TITLES)
    elif not settings.parts:
        settings.parts = [LOADS] if settings.only or settings.profile else list(USUAL)
    settings.rounds = settings.rounds or (2 if settings.quick else 5)
    settings.seconds = settings.seconds or (0.3 if settings.quick else 1.5)
    settings.only = None if settings.only is None else settings.only.split(",")
    settings.stalled = settings.stalled or timedelta(seconds=5 if settings.quick else 60)
    settings.duration = settings.duration or timedelta(seconds=8 if settings.quick else 60)
    return settings


async def main(settings: argparse.Namespace) -> int:
    """Returns the exit status."""
    document: dict[str, Any] = {}
    found: list[Finding] = []
    for part in settings.parts:
        begin(TITLES[part])
        if part == LOADS:
            document = await _measure_loads(settings)
        else:
            figures = await _measure(part, settings)
            found += figures
            _say(f"{TITLES[part]}\n{findings.table(figures)}\n\n")
    document = {**report.provenance(), **document, "findings": findings.document(found)}
    settings.json.parent.mkdir(parents=True, exist_ok=True)
    settings.json.write_text(f"{json.dumps(document, indent=2)}\n")
    _say(f"JSON: {settings.json}\n")
    return 0


async def _measure_loads(settings: argparse.Namespace) -> dict[str, Any]:
    with profiling.profile(settings.profile) as profile:
        measured = await loads.measure(
            rounds=settings.rounds, seconds=settings.seconds, only=settings.only, profile=profile
        )
    _say(
        f"{report.table(measured.entries, measured.summaries)}\n\n"
        f"Medians of {settings.rounds} interleaved rounds of {settings.seconds:g} s, {len(PAYLOAD)}-byte payloads, one "
        f"router, one replica.\n{profile.report()}\n"
    )
    facts = {
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "payload_bytes": len(PAYLOAD),
        "routers": 1,
        "replicas": 1,
        "profiled": settings.profile,
    }
    return report.document(measured.entries, measured.summaries, facts)


async def _measure(part: str, settings: argparse.Namespace) -> list[Finding]:
    quick = settings.quick
    if part == "core":
        return core.measure(rounds=3 if quick else 8, decisions=20_000 if quick else 50_000)
    timeout_s = settings.call_timeout.total_seconds() if settings.call_timeout else None
    measures: dict[str, Callable[[], Awaitable[list[Finding]]]] = {
        "latency": lambda: latency.measure(rounds=4 if quick else 12),
        "executors": lambda: executors.measure(rounds=10 if quick else 60, calls=2_560),
        "hops": lambda: hops.measure(rounds=4 if quick else 12),
        "applications": lambda: applications.measure(rounds=2 if quick else 5, seconds=0.3 if quick else 1.5),
        "scaling": lambda: scaling.measure(
            rounds=2 if quick else 5,
            seconds=0.3 if quick else 1.0,
            routers=(1,) if quick else (1, 2),
            clients=(1,) if quick else (1, 8),
        ),
        "two-step": lambda: two_step.measure(rounds=4 if quick else 12),
        "batching": lambda: batching.measure(rounds=2 if quick else 5, seconds=3.0 if quick else 10.0),
        "vectorised": lambda: _vectorised(rounds=3 if quick else 10),
        "slow-calls": lambda: slow_calls.measure(rounds=2 if quick else 5),
        "memory": memory.measure,
        "endpoints": endpoints.measure,
        "tables": lambda: tables.measure(rounds=3 if quick else 7),
        "balancer": lambda: balancer_cost.measure(processes=1 if quick else 3, rounds=3 if quick else 5),
        "metrics": lambda: metrics_cost.measure(processes=1 if quick else 3, rounds=3 if quick else 5),
        "tracing": lambda: tracing_cost.measure(processes=1 if quick else 2, rounds=20 if quick else 50),
        "sessions": lambda: sessions_cost.measure(rounds=3 if quick else 10),
        "idle": lambda: idle.measure(seconds=10.0 if quick else 60.0),
        "oip": lambda: inference.measure(rounds=4 if quick else 12, seconds=0.4),
        "security": lambda: security_cost.measure(pairs=1 if quick else 6, rounds=8, seconds=0.1),
        "protos": lambda: protos.measure(rounds=3 if quick else 8, seconds=0.3 if quick else 1.0),
        "http": lambda: http.measure(rounds=2 if quick else 6, seconds=0.5 if quick else 2.0),
        "large": lambda: large.measure(rounds=1 if quick else 3, quiet_s=2.0 if quick else 5.0),
        "payloads": lambda: _payloads(rounds=1 if quick else 3, seconds=0.2 if quick else 0.4),
        "stalled": lambda: stalled.measure(stalled_s=settings.stalled.total_seconds(), quiet_s=2.0 if quick else 10.0),
        "overload": lambda: overload.measure(
            seconds=settings.duration.total_seconds(),
            max_queued_calls=2_000 if quick else 20_000,
            timeout_s=timeout_s,
        ),
        "flood": lambda: flood.measure(quiet_s=2.0 if quick else 10.0),
        "tenants": lambda: tenants.measure(calls=20_000 if quick else 50_000),
    }
    return await measures[part]()


async def _vectorised(rounds: int) -> list[Finding]:
    from benchmarks import vectorised  # it needs numpy, and nothing else here does

    return await vectorised.measure(rounds=rounds)


async def _payloads(rounds: int, seconds: float) -> list[Finding]:
    from benchmarks import payloads  # likewise

    return await payloads.measure(rounds=rounds, seconds=seconds)


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    given = parse()
    run(lambda: main(given), log_level="warning")
