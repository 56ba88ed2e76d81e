"""The compose file as its users run it, with the handler of the session tests in place of the example."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.mesh import ROOT

COMMAND_S: Final = 180.0
HEALTHY_S: Final = 180.0
FILE: Final = ROOT / "docker-compose.yml"
OVERRIDE: Final = ROOT / "tests" / "compose" / "override.yml"
APP: Final = ROOT / "examples" / "compose-app" / "docker-compose.yml"
TLS: Final = ROOT / "deploy" / "compose" / "tls.yaml"
SERVICES: Final = ("controller", "router", "replica", "edge", "ingress")


def compose_commands() -> dict[str, Sequence[str]]:
    """Which compose there is, by version."""
    found: dict[str, Sequence[str]] = {}
    if _works(["docker", "compose", "version"]):
        found["v2"] = ("docker", "compose")
    if shutil.which("docker-compose") and _works(["docker-compose", "version"]):
        found.setdefault("v1", ("docker-compose",))
    return found


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@dataclass(slots=True)
class ComposeProject:
    """One project of an engine."""

    command: Sequence[str]
    name: str
    variables: Mapping[str, str]
    """Of the compose files."""
    files: Sequence[Path] = (FILE, OVERRIDE)
    services: Sequence[str] = SERVICES
    scales: dict[str, int] = field(default_factory=lambda: {"router": 1, "replica": 2})

    async def up(self, **scales: int) -> None:
        """Starts what is missing and ends what is too much; the other services stay as they are."""
        self.scales |= scales
        flags = [f"--scale={service}={number}" for service, number in self.scales.items()]
        await self.compose("up", "-d", "--no-recreate", "--no-build", *flags, *self.services)

    async def containers(self, service: str) -> list[str]:
        """The ids of a service's containers."""
        return (await self.compose("ps", "-q", service)).split()

    async def leave(self, containers: Sequence[str]) -> None:
        """Has these containers drain and end, and removes them."""
        for command in (("docker", "stop", "--time=75"), ("docker", "rm")):
            process = await asyncio.create_subprocess_exec(*command, *containers, stdin=DEVNULL, stdout=DEVNULL)
            async with asyncio.timeout(COMMAND_S):
                assert await process.wait() == 0, f"{' '.join(command)} failed"

    async def wait_healthy(self, service: str, count: int) -> None:
        """Waits until so many containers of a service are healthy, and there are no others."""
        async with asyncio.timeout(HEALTHY_S):
            while await self._health(service) != ["healthy"] * count:  # noqa: ASYNC110 - an engine has to be asked
                await asyncio.sleep(0.5)

    async def _health(self, service: str) -> list[str]:
        shown = "{{.State.Health.Status}}"
        command = ("docker", "inspect", f"--format={shown}", *await self.containers(service))
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE)
        out, _ = await process.communicate()
        return out.decode().split()

    async def replace(self, service: str) -> None:
        """Makes the container of a service anew, as an upgrade does that has no other beside it."""
        await self.compose("up", "-d", "--no-deps", "--no-build", "--force-recreate", service)

    async def restart(self, service: str) -> None:
        await self.compose("restart", service)

    async def logs(self) -> str:
        return await self.compose("logs", "--no-color", "--tail=60")

    async def down(self) -> None:
        await self.compose("down", "--volumes", "--timeout=5")

    async def compose(self, *arguments: str) -> str:
        """Runs a command of compose. Raises AssertionError with what it printed where it fails."""
        files = [f"--file={it}" for it in self.files]
        # Of the profile only what is named is started; all of it is ended.
        process = await asyncio.create_subprocess_exec(
            *(*self.command, "-p", self.name, *files, "--profile=observability", *arguments),
            cwd=ROOT,
            env={**os.environ, **self.variables},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        async with asyncio.timeout(COMMAND_S):
            out, err = await process.communicate()
        assert process.returncode == 0, f"compose {' '.join(arguments)}:\n{(out + err).decode('utf-8', 'replace')}"
        return out.decode("utf-8", "replace")


def history_folder(folder: Path) -> Path:
    """A folder that containers may write to, whoever they run as."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    return folder
