"""What deploy/compose/tls.yaml gives each service, without containers: certificates by its script, flags, variables."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from controller_service.app import open_controller
from controller_service.config import ControllerSettings
from controller_service.shell.launchers.protocol import Launcher
from ingress_service.app import serve as serve_ingress
from ingress_service.config import IngressSettings
from router_service.app import serve as serve_router
from router_service.config import RouterSettings
from slotmesh.config import ServiceSettings
from slotmesh.spec.document import parse_mesh
from tests.support.controllers import eventually
from tests.support.http_client import HttpAnswer, http_connection
from tests.support.mesh import ROOT
from tests.support.replicas import HANDLERS, running_replica
from tests.support.shell import program
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.long]

COMPOSE: Final = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
BY_TLS: Final = yaml.safe_load((ROOT / "deploy/compose/tls.yaml").read_text("utf-8"))["services"]
PROMETHEUS: Final = yaml.safe_load((ROOT / "deploy/prometheus/prometheus-tls.yaml").read_text("utf-8"))
OWN: Final = ("--host", "--port", "--advertise", "--metrics-host", "--metrics-port", "--state", "--spec", "--routers")
"""Flags for containers, and for the network of the mesh."""
SPEC: Final = "backends: {words: {num_replicas: 1}}\nendpoints: {words: {traffic: {words: 1.0}}}"


@dataclass(frozen=True)
class Volumes:
    """What the service `certs` fills."""

    folder: Path

    async def certs(self, *command: str) -> str:
        """Runs its script with this command; what it prints on stdout."""
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        for name, text in (("chown", "exit 0"), ("python", f'exec {sys.executable} "$@"')):
            (programs / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
            (programs / name).chmod(0o755)
        script = ROOT / "deploy" / "compose" / "certs.sh"
        env = {**os.environ, "VOLUMES": str(self.folder), "PATH": f"{programs}:{os.environ['PATH']}"}
        said = await program("sh", script, *command, cwd=ROOT, env=env)
        assert said.status == 0, said.out + said.err
        return said.out.strip()

    def of(self, service: str) -> Path:
        """The one that is mounted at /certs of a service."""
        (volume,) = [it for it in BY_TLS[service]["volumes"] if it.endswith(":/certs:ro")]
        mounted = dict(it.split(":", 1) for it in BY_TLS["certs"]["volumes"])
        path: str = mounted[volume.partition(":")[0]]
        return self.folder / path.lstrip("/")

    def settings(self, kind: type[ServiceSettings], service: str, *flags: str) -> Any:
        """As the files say, but for what is of containers."""
        given = [it for it in COMPOSE[service]["command"][1:] if it.partition("=")[0] not in OWN]
        given = [it for it in given if not any(it.startswith(flag.partition("=")[0] + "=") for flag in flags)]
        env = {**COMPOSE[service]["environment"], **BY_TLS[service]["environment"]}
        env = {name: text.replace("/certs", str(self.of(service))) for name, text in env.items()}
        return kind.parse([*given, "--port=0", *flags], env, prog=service)

    def context(self, service: str, name: str = "") -> ssl.SSLContext:
        """Trusts the authority, and shows the certificate of that name."""
        context = ssl.create_default_context(cafile=str(self.of(service) / "ca.crt"))
        if name:
            context.load_cert_chain(self.of(service) / f"{name}.crt", self.of(service) / f"{name}.key")
        return context


@asynccontextmanager
async def running(volumes: Volumes) -> AsyncIterator[tuple[str, str]]:
    """A mesh with an ingress: the addresses of its HTTPS and of its metrics."""
    async with AsyncExitStack() as stack:
        of_controller = volumes.settings(ControllerSettings, "controller", "--state=memory", "--metrics-port=-1")
        controller = await stack.enter_async_context(open_controller(of_controller, lambda *_: Launcher()))
        await controller.configurator.apply_mesh(parse_mesh(SPEC), prune=False)
        at = f"--controller={controller.address}"
        await stack.enter_async_context(
            running_replica(
                f"{HANDLERS}:Handler",
                backend="words",
                controller=controller.address,
                tls_dir=volumes.of("replica"),
            )
        )
        of_router = volumes.settings(RouterSettings, "router", at, "--metrics-port=-1", "--router-id=r")
        router = await stack.enter_async_context(serve_router(of_router))
        logged: list[str] = []
        of_ingress = volumes.settings(IngressSettings, "ingress", at, f"--routers={router.address}", "--metrics-port=0")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ingress_service.app._log.info", lambda _text, **said: logged.append(said["metrics"]))
            ingress = await stack.enter_async_context(serve_ingress(of_ingress))
        await wait_until(ingress.routes.has_routes.is_set, timeout=20.0, what="the first routes")
        yield ingress.address, logged[0]


async def asked(address: str, context: ssl.SSLContext, path: str, token: str = "") -> HttpAnswer:
    headers = {"content-type": "application/octet-stream"} | ({"authorization": f"Bearer {token}"} if token else {})
    async with http_connection(address, ssl=context, server_hostname="localhost") as connection:
        return await connection.request("POST", path, b"x", headers=headers)


async def shown(address: str, context: ssl.SSLContext) -> bytes:
    async with http_connection(address, ssl=context, server_hostname="localhost") as connection:
        found: bytes = connection.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found


async def scraped(address: str, volumes: Volumes) -> str:
    """As the job of prometheus-tls.yaml does it."""
    (job,) = [it for it in PROMETHEUS["scrape_configs"] if it["job_name"] == "slotmesh-ingress"]
    name = Path(job["tls_config"]["cert_file"]).stem
    context = volumes.context("prometheus", name)
    async with http_connection(address, ssl=context, server_hostname=job["tls_config"]["server_name"]) as connection:
        await connection.send(b"GET /metrics HTTP/1.0\r\n\r\n")
        return (await connection.reader.read(-1)).decode()


def names_in(page: str) -> set[str]:
    return {line.split("{")[0].split(" ")[0] for line in page.splitlines()}


def assert_each_has_its_own_alone(volumes: Volumes) -> None:
    found: Mapping[str, set[str]] = {
        service: {it.name for it in volumes.of(service).glob("*.key")}
        for service in ("controller", "router", "replica", "ingress", "operator", "prometheus")
    }
    assert found == {
        "controller": {"controller.key"},
        "router": {"router.key"},
        "replica": {"replica.key"},
        "ingress": {"ingress.key"},
        "operator": {"operator-compose.key"},
        "prometheus": {"viewer-prometheus.key"},
    }
    tokens = volumes.of("router") / "tokens.json"
    assert tokens.stat().st_mode & 0o777 == 0o600


async def test_the_ingress_serves_https_to_who_has_a_token_and_metrics_to_prometheus(tmp_path: Path) -> None:
    volumes = Volumes(tmp_path)
    await volumes.certs("init")
    assert_each_has_its_own_alone(volumes)
    context = volumes.context("operator")
    async with running(volumes) as (address, metrics):
        without = await asked(address, context, "/words/echo")
        assert (without.status, without.json["reason"]) == (401, "UNAUTHENTICATED")
        token = await volumes.certs("token", "web")

        async def is_known() -> bool:
            return (await asked(address, context, "/words/echo", token)).body == b"x"

        await eventually(is_known, what="the routers have read the file of tokens", timeout=30)
        page = await scraped(metrics, volumes)
        assert {"slotmesh_ingress_requests_total", "slotmesh_ingress_https_certificate_end_seconds"} <= names_in(page)

        before = await shown(address, context)
        await volumes.certs("rotate")

        async def is_another() -> bool:
            return await shown(address, context) != before

        await eventually(is_another, what="the ingress shows its new certificate", timeout=30)
        assert await is_known()
