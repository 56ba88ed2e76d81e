"""A mesh whose collector takes nothing: its log, what `slotmesh check` says, and its end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import slotmesh
from slotmesh.cli.checking.findings import Section, Severity
from slotmesh.cli.checking.gathering import look_at
from slotmesh.cli.commands.check import findings_of
from tests.support.mesh import started_mesh
from tests.support.wait import within

SIGNALS = {"traces": ("router/", "replica/"), "metrics": ("controller ", "router/", "replica/")}

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120), pytest.mark.slow]


async def test_an_outage_is_one_line_a_process_and_signal_and_check_reports_it() -> None:
    refuses_all = grpc.server(ThreadPoolExecutor(2))
    port = refuses_all.add_insecure_port("127.0.0.1:0")
    refuses_all.start()
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "SLOTMESH_TRACING_RATIO": "1"}
    env |= {"OTEL_METRIC_EXPORT_INTERVAL": "200"}
    try:
        async with started_mesh("tests.e2e.handlers:Whoami", env=env) as mesh:
            async with slotmesh.connect(mesh.router_address) as client:
                assert await client.endpoint("Whoami").pid()

            async def until_reported() -> None:
                """What is reported changes: the first exports are a second after the start."""
                while True:
                    found = findings_of(await look_at(mesh.controller_address))
                    texts = [
                        it.text for it in found if (it.section, it.severity) == (Section.EXPORTS, Severity.WARNING)
                    ]
                    of = {
                        signal: "".join(it for it in texts if f"has taken all {signal} of " in it) for signal in SIGNALS
                    }
                    if all(member in of[signal] for signal, members in SIGNALS.items() for member in members):
                        assert "spans were dropped" in of["traces"]
                        return

            await within(until_reported(), "check reports each member", timeout=60)
            mesh.process.terminate()
            assert await mesh.wait_ended() == 0
            lines = mesh.log_text().splitlines()
    finally:
        refuses_all.stop(None)
    for signal, members in SIGNALS.items():
        outages = [each for each in lines if f"the collector does not take {signal}" in each]
        assert len(outages) == len(members), outages
    assert not [each for each in lines if "opentelemetry" in each]
