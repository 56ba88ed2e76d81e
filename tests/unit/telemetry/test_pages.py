"""Pages beside the metrics: whether a process lives, and whether it takes work."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from slotmesh.telemetry import instruments
from slotmesh.telemetry.setup import MetricsServer, setup_metrics


@pytest.fixture
def metrics() -> Iterator[MetricsServer]:
    server = setup_metrics("slotmesh-test", port=0)
    yield server
    server.shutdown()


def page(metrics: MetricsServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{metrics.address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_process_that_starts_lives_and_is_not_ready(metrics: MetricsServer) -> None:
    assert page(metrics, "/healthz") == (200, "ok\n")
    assert page(metrics, "/readyz") == (503, "starting\n")


@pytest.mark.asyncio
async def test_readiness_is_that_of_the_server(metrics: MetricsServer) -> None:
    serving = False
    metrics.look_at(lambda: serving)
    assert await asyncio.to_thread(page, metrics, "/readyz") == (503, "not serving\n")
    serving = True
    assert await asyncio.to_thread(page, metrics, "/readyz") == (200, "serving\n")
    assert await asyncio.to_thread(page, metrics, "/healthz") == (200, "ok\n")


@pytest.mark.asyncio
async def test_a_standby_is_ready_for_a_probe_that_accepts_one(metrics: MetricsServer) -> None:
    serving, standing_by = False, True
    metrics.look_at(lambda: serving, lambda _: "standing by", lambda: standing_by)
    assert await asyncio.to_thread(page, metrics, "/readyz") == (503, "standing by\n")
    assert await asyncio.to_thread(page, metrics, "/readyz?a=b&standbyok") == (200, "standing by\n")
    assert (await asyncio.to_thread(page, metrics, "/readyz?standbyokay"))[0] == 503
    standing_by = False  # it starts, or ends
    assert (await asyncio.to_thread(page, metrics, "/readyz?standbyok"))[0] == 503
    serving = True
    assert await asyncio.to_thread(page, metrics, "/readyz?standbyok") == (200, "serving\n")


@pytest.mark.asyncio
async def test_a_loop_that_stands_still_is_told(metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "SCRAPE_TIMEOUT_S", 0.05)
    metrics.look_at(lambda: True)
    with ThreadPoolExecutor() as threads:
        # The loop waits for the answers, so it cannot turn before they are there.
        for path in ("/healthz", "/readyz"):
            assert threads.submit(page, metrics, path).result() == (503, "the event loop does not answer\n")
    assert await asyncio.to_thread(page, metrics, "/healthz") == (200, "ok\n")


def test_other_pages_do_not_exist(metrics: MetricsServer) -> None:
    assert page(metrics, "/") == (200, "/metrics\n/healthz\n/readyz\n")
    status, text = page(metrics, "/health")
    assert (status, text.splitlines()[1:]) == (404, ["/metrics", "/healthz", "/readyz"])
    assert page(metrics, "/metrics")[0] == 200
