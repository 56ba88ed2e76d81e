"""Replica processes on this machine.

Purpose: `sys.executable -m replica_service …`, with the environment, working directory, stdout and stderr of the
controller.
Invariants: each process has a thread that waits for it and for nothing else, so reaping needs no SIGCHLD handler and
works on every event loop; a process holds the read end of a pipe whose other end only the controller has, so it
learns of the controller's end whatever the cause.
Owner: the event loop that it was made on.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from controller_service.shell.launchers.protocol import Exit, LaunchFailed, LaunchOrder, OnExit
from slotmesh.runtime.parent import ParentPipe
from slotmesh.telemetry.log import get_logger

CommandOf: TypeAlias = Callable[[LaunchOrder, int], Sequence[str]]
"""The command line of a replica: its order, and the descriptor that ends with the controller."""

CLOSE_GRACE_S: Final = 5.0
"""Time that `close` gives to processes that were not asked to end before."""

_log = get_logger(__name__)


def replica_command(controller_address: str, *, log_format: str, log_level: str) -> CommandOf:
    """The command lines of replicas that attach to `controller_address`, `HOST:PORT`."""

    def command(order: LaunchOrder, parent_fd: int) -> Sequence[str]:
        return [
            sys.executable,
            "-m",
            "replica_service",
            f"--handler={order.handler}",
            f"--backend={order.backend}",
            f"--controller={controller_address}",
            f"--replica-id={order.replica_id}",
            f"--parent-fd={parent_fd}",
            "--port=0",
            "--metrics-port=0",
            f"--log-format={log_format}",
            f"--log-level={log_level}",
        ]

    return command


class ProcessLauncher:
    """Implements `Launcher` with child processes."""

    def __init__(self, command: CommandOf, on_exit: OnExit, *, close_grace_s: float = CLOSE_GRACE_S) -> None:
        self._command = command
        self._on_exit = on_exit
        self._close_grace_s = close_grace_s
        self._loop = asyncio.get_running_loop()
        self._parent = ParentPipe()
        self._running: dict[str, _Child] = {}
        self._emptied = asyncio.Event()
        self._emptied.set()

    @property
    def launches(self) -> bool:
        return True

    async def start(self, order: LaunchOrder) -> int:
        child = self._spawn(order)
        self._running[order.replica_id] = child
        self._emptied.clear()
        child.reaper.start()
        return child.process.pid

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        child = self._running.get(replica_id)
        if child is None or child.killing is not None:
            return
        child.process.terminate()
        child.killing = self._loop.call_later(grace_s, self._kill, replica_id, grace_s)

    async def close(self) -> None:
        for replica_id in [*self._running]:
            self.stop(replica_id, grace_s=self._close_grace_s)
        await self._emptied.wait()
        self._parent.close()

    def _spawn(self, order: LaunchOrder) -> _Child:
        """Without an await: a process that was started is always known."""
        command = self._command(order, self._parent.fd)
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell
                command, stdin=subprocess.DEVNULL, pass_fds=self._parent.pass_fds
            )
        except OSError as error:
            raise LaunchFailed(f"cannot start {command[0]}: {error.strerror or error}") from error
        reaper = threading.Thread(
            target=self._reap, args=(order.replica_id, process), name=f"reap-{order.replica_id}", daemon=True
        )
        return _Child(process, reaper)

    def _reap(self, replica_id: str, process: subprocess.Popen[bytes]) -> None:
        """In a thread of its own."""
        status = process.wait()
        try:
            self._loop.call_soon_threadsafe(self._reaped, replica_id, status)
        except RuntimeError:
            return  # the loop has ended

    def _reaped(self, replica_id: str, status: int) -> None:
        child = self._running.pop(replica_id)
        if child.killing is not None:
            child.killing.cancel()
        if not self._running:
            self._emptied.set()
        self._on_exit(Exit(replica_id=replica_id, how=_how(status), failed=status != 0))

    def _kill(self, replica_id: str, grace_s: float) -> None:
        if child := self._running.get(replica_id):
            _log.warning("replica did not end in time; killing it", replica=replica_id, grace_s=grace_s)
            child.process.kill()


class _Child:
    """A process that was not reaped yet."""

    def __init__(self, process: subprocess.Popen[bytes], reaper: threading.Thread) -> None:
        self.process = process
        self.reaper = reaper
        self.killing: asyncio.TimerHandle | None = None
        """Set once it was asked to end."""


def _how(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
