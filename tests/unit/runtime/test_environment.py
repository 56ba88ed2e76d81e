"""gRPC's settings come before gRPC, in every process of the mesh, and the user's come before ours."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from slotmesh.runtime.environment import set_grpc_environment

_ENTRY_POINTS = ["router_service.__main__", "replica_service.__main__", "controller_service.__main__", "slotmesh.cli"]


@pytest.mark.parametrize("module", _ENTRY_POINTS)
def test_entry_point_does_not_load_grpc_before_its_settings_are_made(module: str) -> None:
    program = f"import sys, {module}; sys.exit('grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_services_run_with_the_settings() -> None:
    program = (
        "import os, sys\n"
        "from slotmesh.runtime import main\n"
        "main.run = lambda *_, **__: sys.exit(0 if 'event_engine' in os.environ.get('GRPC_EXPERIMENTS', '') else 1)\n"
        "sys.argv = ['router', '--controller=127.0.0.1:1']\n"
        "from router_service.__main__ import main\n"
        "main()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30, env=environment)


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_EXPERIMENTS", "")
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    set_grpc_environment()
    assert os.environ["GRPC_EXPERIMENTS"] == ""
    assert os.environ["GRPC_VERBOSITY"] == "ERROR"
    monkeypatch.delenv("GRPC_EXPERIMENTS")
    set_grpc_environment()
    assert "-event_engine_client" in os.environ["GRPC_EXPERIMENTS"]


@pytest.mark.parametrize(
    ("program", "set_before", "expected"),
    [
        ("import slotmesh, grpc", None, "-event_engine_client,-event_engine_listener"),
        ("import grpc, slotmesh", None, "None"),
        ("import slotmesh, grpc", "", ""),
        ("import slotmesh, grpc", "some_experiment", "some_experiment"),
    ],
    ids=["slotmesh first", "grpc first", "set to nothing", "set"],
)
def test_an_application_that_sets_nothing_does_without_the_event_engine(
    program: str, set_before: str | None, expected: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    if set_before is not None:
        environment["GRPC_EXPERIMENTS"] = set_before
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{program}, os; print(os.environ.get('GRPC_EXPERIMENTS'), 'GRPC_VERBOSITY' in os.environ)",
        ],
        check=True,
        timeout=30,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert told.stdout.rstrip("\n") == f"{expected} False"
