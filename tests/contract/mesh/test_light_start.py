"""What a process loads before it is ready: the heavy packages that it does not need are not among it.

Each start of a process pays for them in processor time, some a tenth of a second. No time is measured: the names of
modules are read in the process itself, as it ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BOUND_S = 60.0

NOWHERE = (
    *("pydantic", "structlog", "rich", "pygments", "yaml", "typer", "click", "slotmesh.cli", "slotmesh.testing"),
    *(
        "cryptography",
        "jwt",
        "grpc_tools.protoc",
        "numpy",
        "unittest",
        "pdb",
        "pytest",
    ),
)
"""In no service that is given no certificates, tokens, files or collector."""
SERVICES = {
    "controller_service": ("--launcher=external",),
    "router_service": ("--controller=127.0.0.1:1",),
    "ingress_service": ("--controller=127.0.0.1:1", "--routers=127.0.0.1:1"),
    "replica_service": ("--handler=tests.e2e.handlers:Workshop",),
}
SDK = ("opentelemetry.exporter", "opentelemetry.sdk", "prometheus_client")
"""Not in replicas: they load it before the folder of the handler leads the search of modules."""
NOT_IN = {
    "controller_service": (
        *SDK,
        "starlette",
        "websockets",
        "slotmesh.client.mesh",
        "replica_service",
        "router_service",
    ),
    "router_service": (*SDK, "starlette", "websockets", "sqlite3", "slotmesh.client.mesh", "controller_service"),
    "ingress_service": (*SDK, "sqlite3", "controller_service", "router_service", "replica_service"),
    "replica_service": ("starlette", "websockets", "sqlite3", "controller_service", "router_service"),
}
TELLS = """
import atexit, runpy, sys
atexit.register(lambda: print(*sys.modules, file=open({path!r}, "w")))
sys.argv = ["-m", *sys.argv[1:]]
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def loaded(within: Sequence[str], names: Sequence[str]) -> list[str]:
    """Which of these packages and modules are among the modules, or have one below them that is."""
    return [name for name in names if any(it == name or it.startswith(f"{name}.") for it in within)]


def modules_of_service(module: str, flags: Sequence[str], folder: Path) -> list[str]:
    """The modules of a service that is ready, and was asked to stop then."""
    path = folder / "modules"
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [
            *(sys.executable, "-c", TELLS.format(path=str(path), module=module)),
            *("--port=0", f"--announce-fd={write_end}", *flags),
        ],
        pass_fds=(write_end,),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(write_end)
        with os.fdopen(read_end) as announced:
            address = announced.read()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=BOUND_S)
    assert address, said
    return path.read_text("utf-8").split()


@pytest.mark.slow
@pytest.mark.parametrize("module", SERVICES)
def test_a_service_is_ready_without_what_it_does_not_need(module: str, tmp_path: Path) -> None:
    modules = modules_of_service(module, SERVICES[module], tmp_path)
    assert "grpc.aio" in modules
    assert loaded(modules, (*NOWHERE, *NOT_IN[module])) == []


@pytest.mark.slow
def test_modules_beside_a_handler_do_not_break_its_metrics(tmp_path: Path) -> None:
    (tmp_path / "shadowed.py").write_text("def handle(x: int) -> int:\n    return x\n", "utf-8")
    for name in ("gzip", "html", "prometheus_client"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is not the one')\n", "utf-8")
    read_end, write_end = os.pipe()
    command = [*(sys.executable, "-P", "-m", "replica_service"), "--handler=shadowed:handle", "--log-format=json"]
    with subprocess.Popen(
        [*command, "--port=0", f"--announce-fd={write_end}"],
        pass_fds=(write_end,),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(write_end)
        try:
            assert process.stderr is not None
            lines = (json.loads(line) for line in process.stderr)
            url = next(line["url"] for line in lines if line["event"] == "serving metrics")
            address = url.removeprefix("http://").removesuffix("/metrics")
            with os.fdopen(read_end) as announced:
                assert announced.read()
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=BOUND_S) as answer:
                assert b"slotmesh_replica_calls_total" in answer.read()
        finally:
            process.terminate()
            process.communicate(timeout=BOUND_S)


def modules_of(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=BOUND_S,
    )
    return done.stdout.split()


IMPORTS = {
    "import slotmesh": (*NOWHERE, "grpc", "google", "asyncio", "opentelemetry", "msgspec", "slotmesh.client"),
    "from slotmesh import connect": (*NOWHERE, "opentelemetry.sdk", "prometheus_client", "sqlite3", "starlette"),
    "from slotmesh import connect_sync": (*NOWHERE, "opentelemetry.sdk", "prometheus_client", "sqlite3", "starlette"),
    "from slotmesh import deployment, batch": (*NOWHERE, "grpc", "opentelemetry.sdk"),
    "import slotmesh.spec.model": (*NOWHERE, "grpc", "google", "msgspec", "slotmesh.codec", "slotmesh.handlers.kinds"),
}


@pytest.mark.slow
@pytest.mark.parametrize("code", IMPORTS)
def test_an_import_loads_what_it_needs(code: str) -> None:
    assert loaded(modules_of(code), IMPORTS[code]) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "call", "check"])
def test_a_command_loads_no_other_command_and_no_service(command: str, tmp_path: Path) -> None:
    path = tmp_path / "modules"
    subprocess.run(
        [sys.executable, "-c", TELLS.format(path=str(path), module="slotmesh.cli"), command, "--version-is-no-flag"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=BOUND_S,
    )
    modules = path.read_text("utf-8").split()
    others = [it for it in modules if it.startswith("slotmesh.cli.commands.") and it.count(".") == 3]
    assert others == [f"slotmesh.cli.commands.{command}"]
    services = ("controller_service", "router_service", "replica_service", "ingress_service")
    heavy = ("structlog", "yaml", "cryptography", "jwt", "opentelemetry.sdk", "prometheus_client", "numpy", "sqlite3")
    assert loaded(modules, (*services, *heavy, "slotmesh.client.mesh" if command != "call" else "starlette")) == []
