"""Replica processes on this machine.

Purpose: `sys.executable -m replica_service …`, with the environment and working directory of the controller, unless its
backend has others. Each has a session and a process group of its own, and writes to a file of its own.
Invariants: each process has a thread that waits for it and for nothing else, so reaping needs no SIGCHLD handler and
works on every event loop; a process outlives this controller, and is found by the next one by its record in the launch
directory, unless it was tied to a pipe that ends with another process.
Owner: the event loop that it was made on.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final, TypeAlias

from controller_service.core.devices import DeviceLedger, Pools
from controller_service.core.roster import HeldTable
from controller_service.shell.launchers.launched_processes import (
    LOG_SUFFIX,
    ChildProcess,
    FoundProcess,
    LaunchDirectory,
    LaunchedProcess,
    LaunchRecord,
    end_left_behind,
)
from controller_service.shell.launchers.memory_watch import MemoryWatch
from controller_service.shell.launchers.process_start import (
    Preparations,
    ProcessStart,
    cpu_violations,
    cpus_for,
    device_variable_violations,
    pinned,
    reason_of,
)
from controller_service.shell.launchers.protocol import (
    Exit,
    Instance,
    LaunchDeferred,
    Launcher,
    LaunchFailed,
    LaunchOrder,
    OnExit,
    Stranger,
)
from controller_service.shell.replica_logs import LogBook
from slotmesh.logs import get_logger
from slotmesh.runtime.process_identity import find_by_argument, pid_of, process_of
from slotmesh.spec.devices import read_devices, variables_of, written
from slotmesh.spec.environment import ProcessSettings
from slotmesh.spec.model import Backend, SpecViolation
from slotmesh.units import format_duration

CommandOf: TypeAlias = Callable[[str, LaunchOrder], Sequence[str]]
"""The command line of a replica: its id, and its order."""

_OF_ORDERS: Final = ("backend", "handler", "template", "fixed", "handler_version", "code", "devices")
"""What a record has of its order."""
NO_POOLS: Final[Pools] = MappingProxyType({})
NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})
CLOSE_GRACE_S: Final = 5.0
"""Time that `close` gives to processes that were not asked to end before."""

_log = get_logger(__name__)


def replica_command(
    controller_addresses: Callable[[], Sequence[str]],
    *,
    log_format: str,
    log_level: str,
    orphan_timeout: timedelta,
    tls: Sequence[str] = (),
    parent_fd: int | None = None,
) -> CommandOf:
    """The command lines of replicas that attach to whichever of these controllers, `HOST:PORT`, leads then.

    `tls`: flags that say where their certificates are. `parent_fd`: the descriptor of a pipe whose end ends them.
    """

    def command(replica_id: str, order: LaunchOrder) -> Sequence[str]:
        return [
            sys.executable,
            "-m",
            "replica_service",
            f"--handler={order.handler}",
            f"--backend={order.backend}",
            *([f"--code={order.code}"] if order.code else []),
            *([f"--devices={order.devices}"] if order.devices else []),
            f"--controller={','.join(controller_addresses())}",
            _id_argument(replica_id),
            *([f"--parent-fd={parent_fd}"] if parent_fd is not None else []),
            f"--orphan-timeout={format_duration(orphan_timeout)}",
            "--port=0",
            "--metrics-port=0",
            *tls,
            f"--log-format={log_format}",
            f"--log-level={log_level}",
        ]

    return command


class ProcessLauncher(Launcher):
    """Starts processes."""

    launches = imports_snapshots = True
    most_starting = max(8, 4 * (os.cpu_count() or 1))
    """Each takes a second of processor time: with more the machine would have none left for those that serve."""

    def __init__(
        self,
        command: CommandOf,
        on_exit: OnExit,
        directory: LaunchDirectory,
        logs: LogBook,
        mint_id: Callable[[str], str],
        *,
        controller: str = "",
        parent_fd: int | None = None,
        close_grace_s: float = CLOSE_GRACE_S,
        pools: Pools = NO_POOLS,
        device_variables: Mapping[str, str] = NO_VARIABLES,
    ) -> None:
        """`mint_id` gives a new replica id for a backend. `controller` is its address, for people.

        `parent_fd` is a descriptor that processes inherit. `device_variables`: the variable in which a replica finds
        its devices of a pool, if it has another name than usual.
        """
        self._pools = pools
        self._share_limits: Mapping[str, int] = {}
        self._variables = variables_of(pools, device_variables)
        self._command = command
        self._on_exit = on_exit
        self._directory = directory
        self._controller = controller
        self._strangers: dict[str, Stranger] = {}
        self._logs = logs
        self._mint_id = mint_id
        self._inherited = () if parent_fd is None else (parent_fd,)
        self._close_grace_s = close_grace_s
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, _Running] = {}
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._preparations = Preparations()
        self._memory = MemoryWatch(self._ended_by_memory)
        self._find()

    async def start(self, order: LaunchOrder, count: int) -> None:
        start = await self._preparations.of(order.backend, order.process)
        present = sum(it.instance.order == order and not it.is_asked for it in self._running.values())
        for _ in range(count - present):
            self._spawn(self._with_devices(order), start)

    async def prepare(self, order: LaunchOrder) -> None:
        await self._preparations.of(order.backend, order.process)
        cpus_for(order.backend, order.process.cpus, {})

    def violations(self, backend: Backend) -> Iterable[SpecViolation]:
        yield from cpu_violations(backend)
        yield from device_variable_violations(backend, self._pools, self._variables)

    def observe(self) -> Sequence[Instance]:
        return [running.instance for running in self._running.values()]

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        running = self._running.get(replica_id)
        if running is None or running.is_asked:
            return
        running.is_asked = True
        running.process.terminate()
        running.killing = self._loop.call_later(grace_s, self._kill_late, replica_id, grace_s)

    def kill(self, replica_id: str) -> None:
        if running := self._running.get(replica_id):
            running.is_asked = True
            running.process.kill()

    def strangers(self) -> Sequence[Stranger]:
        return [*self._strangers.values()]

    def disown(self) -> None:
        for replica_id in self._strangers:
            self._directory.remove(replica_id)
        self._strangers.clear()

    def devices(self) -> DeviceLedger:
        held = {name: running.instance.order.devices for name, running in self._running.items()}
        held |= {name: stranger.devices for name, stranger in self._strangers.items()}
        holders = {name: read_devices(it) for name, it in held.items() if it}
        return DeviceLedger(pools=self._pools, holders=holders, share_limits=self._share_limits)

    def limit_shares(self, limits: Mapping[str, int]) -> None:
        self._share_limits = limits

    def _with_devices(self, order: LaunchOrder) -> LaunchOrder:
        """The order with the devices of one more replica. Raises LaunchDeferred."""
        if not order.wanted_devices:
            return order
        ledger = self.devices()
        chosen = ledger.choose(order.wanted_devices)
        if chosen is None:
            raise LaunchDeferred(f"no device is free: {ledger.lack(order.wanted_devices)}")
        return replace(order, devices=written(chosen))

    def _device_environment(self, order: LaunchOrder) -> dict[str, str]:
        """The variables of all pools: a replica sees what it holds, and none of the others' devices."""
        held: dict[str, list[str]] = {pool: [] for pool in self._pools}
        for device in read_devices(order.devices):
            held[device.pool].append(device.name)
        return {self._variables[pool]: ",".join(names) for pool, names in held.items()}

    async def leave(self) -> None:
        for running in self._running.values():
            running.is_left = True
        self._memory.close()
        await self._logs.close()
        self._directory.close()

    async def close(self) -> None:
        for replica_id in [*self._running]:
            self.stop(replica_id, grace_s=self._close_grace_s)
        await self._emptied.wait()
        self._memory.close()
        await self._logs.close()
        self._directory.close()

    def _find(self) -> None:
        """Takes over what an earlier life of the controller has started and still runs."""
        for record in self._directory.records():
            process = record.process
            if not process and (pid := find_by_argument(_id_argument(record.replica_id))):
                process = process_of(pid)  # it was started, and the controller ended before it had written that
            found = FoundProcess.open(pid_of(process), process) if process else None
            if found is None:
                if record.directory == self._directory.identity:
                    end_left_behind(process, self._directory.log_of(record.replica_id))
                self._directory.remove(record.replica_id)
                continue
            if record.directory != self._directory.identity:
                found.close()
                why = f"was started by another controller ({record.controller or 'unknown'}), by whose launch directory"
                self._strangers[record.replica_id] = Stranger(
                    replica_id=record.replica_id, why=f"{why} this one is a copy of", devices=record.devices
                )
                continue
            version = HeldTable(generation=record.generation, revision=record.revision, term_id=record.term_id)
            settings = ProcessSettings(cpus=record.cpus, memory=record.memory)
            order = LaunchOrder(version=version, process=settings, **{it: getattr(record, it) for it in _OF_ORDERS})
            self._follow(record.replica_id, record.backend, is_older=True)
            self._watch(
                Instance(replica_id=record.replica_id, order=order, pid=found.pid, process=process, was_found=True),
                found,
            )
            if missing := [it for it in read_devices(record.devices) if it.name not in self._pools.get(it.pool, ())]:
                names = {"replica": record.replica_id, "devices": written(missing)}
                _log.warning("a running replica holds devices that --devices does not name", **names)
        for path in self._directory.logs():
            replica_id = path.name.removesuffix(LOG_SUFFIX)
            if replica_id not in self._running and replica_id not in self._strangers:
                with suppress(OSError):  # it was not there to be shown
                    self._logs.remember(replica_id, replica_id.rpartition("-")[0], path)

    def _spawn(self, order: LaunchOrder, start: ProcessStart) -> None:
        """Without an await: a process that was started is always known."""
        replica_id = self._mint_id(order.backend)
        command = self._command(replica_id, order)
        if start.python:
            command = [start.python, *command[1:]]
        running = (it.instance for it in self._running.values())
        held = {it.pid: share for it in running if (share := it.order.process.cpus) is not None}
        cpus = cpus_for(order.backend, order.process.cpus, held)
        record = LaunchRecord(
            replica_id=replica_id,
            **{name: getattr(order, name) for name in _OF_ORDERS},
            directory=self._directory.identity,
            controller=self._controller,
            generation=order.version.generation,
            revision=order.version.revision,
            term_id=order.version.term_id,
            cpus=order.process.cpus,
            memory=order.process.memory,
        )
        try:
            self._directory.write(record)
            output = os.open(self._directory.log_of(replica_id), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            self._directory.remove(replica_id)
            raise LaunchFailed(f"{self._directory.path}: {error.strerror or error}") from error
        try:
            with pinned(cpus):
                process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=self._inherited,
                    start_new_session=True,
                    env={**start.environment, **self._device_environment(order)},
                    cwd=start.cwd,
                )
        except OSError as error:
            self._directory.remove(replica_id)
            raise LaunchFailed(f"cannot start {command[0]}: {reason_of(error)}") from error
        finally:
            os.close(output)
        instance = Instance(replica_id=replica_id, order=order, pid=process.pid, process=process_of(process.pid))
        self._record(record, instance)
        self._follow(replica_id, order.backend)
        self._watch(instance, ChildProcess(process))

    def _record(self, record: LaunchRecord, instance: Instance) -> None:
        try:
            self._directory.write(replace(record, pid=instance.pid, process=instance.process))
        except OSError as error:  # the first record is there, by which it is found
            _log.warning("record of a replica cannot be completed", replica=instance.replica_id, error=str(error))

    def _follow(self, replica_id: str, backend: str, *, is_older: bool = False) -> None:
        try:
            self._logs.follow(replica_id, backend, self._directory.log_of(replica_id), is_older=is_older)
        except OSError as error:
            _log.warning("output of a replica cannot be followed", replica=replica_id, error=str(error))

    def _watch(self, instance: Instance, process: LaunchedProcess) -> None:
        self._running[instance.replica_id] = running = _Running(instance, process)
        self._emptied.clear()
        if (bound := instance.order.process.memory) is not None:
            self._memory.watch(instance.pid, bound)
        threading.Thread(target=self._reap, args=(running,), name=f"reap-{instance.replica_id}", daemon=True).start()

    def _reap(self, running: _Running) -> None:
        """In a thread of its own."""
        end = running.process.wait()
        try:
            self._loop.call_soon_threadsafe(self._reaped, running, end)
        except RuntimeError:
            return  # the loop has ended

    def _reaped(self, running: _Running, end: Exit) -> None:
        if running.is_left:
            return  # the next life of the controller finds that it has ended
        replica_id = running.instance.replica_id
        del self._running[replica_id]
        self._memory.forget(running.instance.pid)
        if running.excess:
            end = replace(end, how=running.excess, was_killed=False)
        if running.killing is not None:
            running.killing.cancel()
        last_output = self._logs.finish(replica_id)
        self._directory.remove(replica_id)
        if not self._running:
            self._emptied.set()
        self._on_exit(replace(end, replica_id=replica_id, last_output=last_output))

    def _ended_by_memory(self, pid: int, how: str) -> None:
        for running in self._running.values():
            if running.instance.pid == pid:
                _log.warning("replica exceeds its memory; killing it", replica=running.instance.replica_id, how=how)
                running.excess = how
                running.process.kill()

    def _kill_late(self, replica_id: str, grace_s: float) -> None:
        if replica_id in self._running:
            _log.warning("replica did not end in time; killing it", replica=replica_id, grace_s=grace_s)
            self.kill(replica_id)


class _Running:
    """A process that was not reaped yet."""

    def __init__(self, instance: Instance, process: LaunchedProcess) -> None:
        self.instance = instance
        self.process = process
        self.is_asked = False
        """It was asked to end, or killed."""
        self.is_left = False
        self.excess = ""
        """It was killed for the memory that it used, in words."""
        self.killing: asyncio.TimerHandle | None = None


def _id_argument(replica_id: str) -> str:
    """The argument that identifies a replica's process among others."""
    return f"--replica-id={replica_id}"
