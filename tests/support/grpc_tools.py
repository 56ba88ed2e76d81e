"""grpcurl and ghz, as `make grpc-tools` builds them, and what documents do with them."""

from __future__ import annotations

import os
import re
from asyncio.subprocess import STDOUT
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.console import Command
from tests.support.mesh import ROOT
from tests.support.shell import program

TOOLS: Final = ROOT / ".tools" / "grpc"
_VALUE: Final = re.compile(r'"(\w+)": "([^"]*)"')
_TIMEOUT_S: Final = 60.0


def need_tools() -> None:
    """Skips the test where they are not built."""
    missing = [name for name in ("grpcurl", "ghz") if not (TOOLS / name).exists()]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not built: make grpc-tools (it needs go)")


class Terminal:
    """Runs commands of a document, which may use values of earlier answers: `$REPLICA_ID` is the newest `replicaId`."""

    def __init__(self, addresses: Mapping[str, str], folder: Path | None = None) -> None:
        """`addresses`: where the document's addresses are, as `localhost:7071`. `folder`: where its files are."""
        self._folder = folder
        self._addresses = addresses
        self._values: dict[str, str] = {}

    async def run(self, command: Command) -> str:
        """What the command prints, to stdout and stderr."""
        text = command.text
        for shown, real in self._addresses.items():
            text = text.replace(shown, real)
        # A route has a `path`, too.
        environment = {**os.environ, **self._values, "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}
        bash = "bash", "-u", "-c", text
        said = await program(*bash, timeout=_TIMEOUT_S, stderr=STDOUT, env=environment, cwd=self._folder)
        output = said.out
        for name, value in reversed(_VALUE.findall(output)):
            self._values[re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()] = value
        return output
