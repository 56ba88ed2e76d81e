"""One process of a local mesh: started, announced, ended.

Invariants: a child is in a process group of its own, so that Ctrl-C in a terminal reaches the launcher only, which then
ends all in order; it holds the launcher's pipe, so that it ends when the launcher has ended, however it did; its output
goes to stderr, because stdout belongs to the `ready` line.
Owner: `LocalMesh`, on one event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer

import slotmesh
from slotmesh.cli.console import WRONG_INPUT, CommandFailed, say
from slotmesh.names import is_utf8
from slotmesh.runtime.environment import importable_here
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.parent import AnnouncePipe, ParentPipe
from slotmesh.runtime.service_modules import check_imported, check_services

NOT_STARTED: Final = "nothing was started"

_STDERR: Final = 2
_OF_OPERATORS: Final = frozenset(
    f"SLOTMESH_{name}" for name in ("TLS_DIR", "TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN", "TOKEN_FILE")
)
"""Variables with the operator's identity. Children get certificates by flags."""


class Child:
    """A process that was started."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, pipe: AnnouncePipe) -> None:
        self.name = name
        """The name in messages, as `router-1`."""
        self.address = ""
        """Where it serves, `HOST:PORT`; empty until it does."""
        self._process = process
        self._pipe = pipe

    @classmethod
    async def start(cls, name: str, module: str, flags: Sequence[str], parent: ParentPipe) -> Child:
        """Starts `python -m module`, which imports nothing from the working directory: that is users' code."""
        pipe = AnnouncePipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *_flags(module),
                "-m",
                module,
                *flags,
                f"--parent-fd={parent.fd}",
                f"--announce-fd={pipe.fd}",
                stdin=DEVNULL,
                stdout=_STDERR,
                pass_fds=(*parent.pass_fds, *pipe.pass_fds),
                process_group=0,
                env=_inherited(),
            )
        except BaseException:
            pipe.close()
            raise
        return cls(name, process, pipe)

    async def announced(self) -> str:
        """Waits until it serves, and returns where. Raises CommandFailed when it ended instead."""
        address = await self._pipe.address()
        if address is None:
            raise CommandFailed(f"the {self.name} did not start: {await self.ended()}")
        self.address = address
        return address

    async def ended(self) -> str:
        """Waits for its end; returns how, for a person."""
        return how(await self._process.wait())

    @property
    def has_ended(self) -> bool:
        """Whether its end was noticed."""
        return self._process.returncode is not None

    def terminate(self) -> None:
        """Asks it to end in order."""
        self._pipe.close()
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Ends it."""
        self._pipe.close()
        with suppress(ProcessLookupError):
            self._process.kill()


def _flags(module: str) -> Sequence[str]:
    """Of the interpreter. A checkout in the working directory has to be importable, and so have users' policies."""
    is_checkout = Path(slotmesh.__file__).parents[1] == Path.cwd()
    has_policies = module == "controller_service" and bool(os.environ.get("SLOTMESH_AUTOSCALE_POLICIES"))
    return () if is_checkout or has_policies else ("-P",)


def _inherited() -> dict[str, str]:
    """The environment without the operator's identity; children get their own identity by flags."""
    return {name: value for name, value in os.environ.items() if name not in _OF_OPERATORS}


def environment() -> Mapping[str, str]:
    """What processes inherit that import users' code, from the working directory, whatever the interpreter's flags."""
    return importable_here(_inherited())


def import_path() -> list[str]:
    """Where these processes find modules: the working directory goes first."""
    folders = [str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    return [folder for folder in folders if folder]


def check_import_path(handlers: Iterable[str] = ()) -> None:
    """Ends the command if a module there has the name of a service, or of what slotmesh imports.

    Also if the working directory has no name in UTF-8: members report where code is.
    """
    try:
        if not is_utf8(folder := str(Path.cwd())):
            raise CannotStart(f"the working directory {folder!a} has no name in UTF-8: rename it, or use another")
        check_services(import_path())
        check_imported(Path.cwd(), handlers)
    except CannotStart as error:
        say(f"{error}; {NOT_STARTED}", err=True)
        raise typer.Exit(WRONG_INPUT) from error


def how(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"it ended with exit status {status}"
    try:
        return f"it was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was killed by signal {-status}"
