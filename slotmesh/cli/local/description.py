"""Asks a handler what it is, in a process of its own: the command line never imports users' code."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress

from slotmesh.cli.local.child import environment, how
from slotmesh.cli.outcome import FAILED, WRONG_INPUT, CommandFailed
from slotmesh.runtime.parent import ParentPipe


async def check_handler(handler: str, parent: ParentPipe) -> None:
    """Raises CommandFailed, with the traceback, for a handler that cannot be imported or described: wrong input."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "slotmesh.cli.local.tether",
        str(parent.fd),
        "replica_service",
        f"--describe={handler}",
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        pass_fds=parent.pass_fds,
        process_group=0,
        env=environment(),
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        told = (err or out).decode(errors="replace").rstrip()
        # Status 1 says that the reason is told.
        how_it_ended = f": {how(process.returncode)}" if process.returncode != 1 else ""
        said = [*filter(None, [told]), f"{handler} cannot be used{how_it_ended}; nothing was started"]
        raise CommandFailed("\n".join(said), WRONG_INPUT if process.returncode > 0 else FAILED)
