"""A real Prometheus for tests: Debian's `prometheus`, on a free port of the loopback, which scrapes what it is told.

Invariants: it scrapes and evaluates its rules each second; what it keeps is gone with the block.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import socket
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.support.mesh import MeshRun
from tests.support.wait import within

START_S: Final = 60.0
POLL_S: Final = 0.25
JOBS: Final = ("slotmesh-controller", "slotmesh-router", "slotmesh-replica", "slotmesh-ingress")
"""Names of jobs, as deploy/prometheus/prometheus.yaml has them."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="NOT TESTED: there is no prometheus (Debian: prometheus)"
)
_OWN: Final = re.compile(r"url=http://(\S+)/metrics")
_OF_INGRESSES: Final = re.compile(r"serving HTTP .*metrics=(\S+:\d+)")


class Prometheus:
    """Asks a Prometheus that runs."""

    def __init__(self, address: str, targets: Path | None = None) -> None:
        self.address = address
        self._targets = targets
        self._listed: dict[str, set[str]] = {job: set() for job in JOBS}

    async def follow(self, mesh: MeshRun) -> None:
        """Scrapes all members that the mesh has now, and those that it has had."""
        assert self._targets is not None
        members, own = await mesh.members(), _OWN.search(mesh.log_text())
        assert own is not None, "the controller, which starts first, says where its metrics are"
        of_members = ([it.metrics_address for it in each] for each in (members.routers, members.replicas))
        found = ((own[1],), *of_members, _OF_INGRESSES.findall(mesh.log_text()))
        for job, addresses in zip(JOBS, found, strict=True):
            self._listed[job] |= {it for it in addresses if it}
        groups = [{"targets": sorted(each), "labels": {"job": job}} for job, each in self._listed.items()]
        partial = self._targets.with_suffix(".partial")
        partial.write_text(json.dumps(groups), "utf-8")
        partial.rename(self._targets)

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression has now: `metric` and `value` of each series.

        Raises:
            AssertionError: Prometheus does not take the expression; the text says why.
        """
        found = await self._get("query", query=expression)
        result: list[dict[str, Any]] = found["result"]
        return result

    async def has_data(self, expression: str) -> bool:
        """Whether it has a value that is a number."""
        return any(not math.isnan(float(it["value"][1])) for it in await self.query(expression))

    async def total(self, expression: str) -> float:
        """The sum of its values, 0 without any."""
        return sum(float(it["value"][1]) for it in await self.query(expression))

    async def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {it["labels"]["alertname"] for it in (await self._get("alerts"))["alerts"] if it["state"] == "firing"}

    async def rules_evaluated(self) -> int:
        """How many rules there are. Raises AssertionError where the newest evaluation of one failed."""
        groups = (await self._get("rules"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert not (failed := [it["name"] for it in rules if it.get("lastError")]), failed
        return len(rules)

    async def members_up(self) -> Mapping[str, Sequence[bool]]:
        """Of the targets of each job, whether the last scrape succeeded."""
        found: dict[str, list[bool]] = {}
        for it in await self.query("up"):
            found.setdefault(it["metric"]["job"], []).append(it["value"][1] == "1")
        return found

    async def wait_for(self, holds: Callable[[], Awaitable[bool]], *, timeout: float, what: str) -> None:
        """Raises AssertionError where it does not hold within `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not await holds():
            assert loop.time() < deadline, f"not within {timeout} s: {what}"
            await asyncio.sleep(POLL_S)

    async def is_ready(self) -> bool:
        try:
            await asyncio.to_thread(_read, f"http://{self.address}/-/ready")
        except (URLError, OSError):
            return False
        return True

    async def _get(self, what: str, **arguments: str) -> dict[str, Any]:
        url = f"http://{self.address}/api/v1/{what}?{urlencode(arguments)}"
        try:
            answer = json.loads(await asyncio.to_thread(_read, url))
        except URLError as error:
            said = error.read().decode() if hasattr(error, "read") else error
            raise AssertionError(f"{arguments}: {said}") from None
        found: dict[str, Any] = answer["data"]
        return found


@asynccontextmanager
async def running_prometheus(rules: Mapping[str, Any] | None = None) -> AsyncIterator[Prometheus]:
    """A Prometheus that is ready, scrapes nothing yet, and evaluates these rules (of a file with rules)."""
    with tempfile.TemporaryDirectory(prefix="slotmesh-prometheus-") as name:
        folder = Path(name)
        (folder / "targets.json").write_text("[]", "utf-8")
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules or {"groups": []}), "utf-8")
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(_configuration(folder)), "utf-8")
        address = f"127.0.0.1:{_free_port()}"
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                "prometheus",
                f"--config.file={folder}/prometheus.yaml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
            )
        prometheus = Prometheus(address, folder / "targets.json")
        try:
            await prometheus.wait_for(prometheus.is_ready, timeout=START_S, what="Prometheus is ready")
            yield prometheus
        except AssertionError as error:
            error.add_note((folder / "log").read_text("utf-8", "replace")[-2000:])
            raise
        finally:
            if process.returncode is None:
                process.kill()
            await within(process.wait(), "the end of the process", timeout=60.0)


def _configuration(folder: Path) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            {"job_name": "members", "file_sd_configs": [{"files": [f"{folder}/*.json"], "refresh_interval": "1s"}]}
        ],
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _read(url: str) -> bytes:
    with urlopen(url, timeout=10) as answer:  # noqa: S310 - our own Prometheus
        data: bytes = answer.read()
        return data
