"""What a handler counts with prometheus_client and with OpenTelemetry's API is on its replica's page."""

from __future__ import annotations

from pathlib import Path

import pytest

import slotmesh as sdk
from tests.support.collector import collector, needs_collector
from tests.support.lone_controller import lone_controller
from tests.support.metrics import scraped_text
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

HANDLER = """
from opentelemetry import metrics
from prometheus_client import Counter, REGISTRY

SEEN = metrics.get_meter("shop").create_counter("shop.seen", unit="1")
ORDERS = Counter("shop_orders", "Orders.")

class Broken:
    def describe(self):
        return []

    def collect(self):
        raise ValueError("no")

class Shop:
    def __init__(self) -> None:
        REGISTRY.register(Broken())

    def order(self) -> int:
        ORDERS.inc()
        SEEN.add(1, {"kind": "gift"})
        return 1
"""


async def test_both_are_on_the_page_of_the_replica(tmp_path: Path) -> None:
    (tmp_path / "counting_of_test.py").write_text(HANDLER)
    spec = (
        f'backends:\n  shop: {{handler: "counting_of_test:Shop", cwd: "{tmp_path}"}}\n'
        "endpoints:\n  shop: {traffic: {shop: 1.0}}\n"
    )
    async with lone_controller(tmp_path, spec) as lone, sdk.connect(lone.router_address) as client:
        await lone.ready(1)
        for _ in range(3):
            await client.endpoint("shop").order()
        (replica,) = (await lone.members()).replicas
        page = await scraped_text(replica.metrics_address)
    assert "\nshop_orders_total 3.0\n" in page
    assert '\nshop_seen_total{kind="gift"} 3.0\n' in page
    assert '\nslotmesh_replica_calls_total{slotmesh_backend="shop"} 3.0\n' in page
    assert page.count("# TYPE target_info ") == 1


@needs_collector
async def test_both_are_pushed_with_an_otlp_endpoint(tmp_path: Path) -> None:
    (tmp_path / "counting_of_test.py").write_text(HANDLER)
    async with collector(tmp_path) as seen:
        env = f'{{OTEL_EXPORTER_OTLP_ENDPOINT: "{seen.endpoint}", OTEL_METRIC_EXPORT_INTERVAL: "200"}}'
        spec = (
            f'backends:\n  shop: {{handler: "counting_of_test:Shop", cwd: "{tmp_path}", env: {env}}}\n'
            "endpoints:\n  shop: {traffic: {shop: 1.0}}\n"
        )
        async with lone_controller(tmp_path, spec) as lone, sdk.connect(lone.router_address) as client:
            await lone.ready(1)
            await client.endpoint("shop").order()
            wanted = {"shop_orders", "shop.seen", "slotmesh.replica.calls"}
            await wait_until(lambda: wanted <= seen.metrics, timeout=30, what="metrics of the handler")
