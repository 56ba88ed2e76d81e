"""What a replica's process is started with, of its backend's settings: environment, interpreter, folder.

Purpose: everything that may be missing on this machine is looked for before a process is started, and named.
Invariants: the content of a file of `env` is read for one start, and is in no message, record or log; messages name the
backend, the setting and the path. Settings that are not used change nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import IO, Final, cast

from controller_service.core.cpu_choice import choose_cpus
from controller_service.core.devices import Pools
from controller_service.shell.launchers.device_pools import VISIBLE
from controller_service.shell.launchers.protocol import LaunchDeferred, LaunchFailed
from slotmesh.runtime.environment import importable_here
from slotmesh.spec.environment import THREAD_VARIABLES, Environment, ProcessSettings
from slotmesh.spec.model import Backend, SpecViolation
from slotmesh.version import VERSION

NOTHING: Final = ProcessSettings()
MAX_FILE_BYTES: Final = 64 * 1024
ORDER: Final = "CUDA_DEVICE_ORDER"
"""By which CUDA numbers GPUs: one number is another GPU in another order."""
_OF_CONTROLLER: Final = ("SLOTMESH_TLS_CERT", "SLOTMESH_TLS_KEY", "SLOTMESH_DEVICES")
"""The controller's own certificate and devices."""
_OF_PYTHON: Final = ("PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
"""Variables that belong to the controller's own interpreter."""
PREPARED_WITHIN_S: Final = 1.0
"""How long a start waits; then it is tried again."""
PREPARED_FOR_S: Final = 120.0
"""What was prepared earlier is not used: files may have changed."""
_CHECK_S: Final = 30.0
_MAX_CHECK_BYTES: Final = 64 * 1024
_CHECK: Final = """
import importlib.util as u, os, runpy, sys
found = u.find_spec("slotmesh")
for name in ("slotmesh", "replica_service", "grpc", "google.protobuf", "opentelemetry"):
    try:
        if u.find_spec(name) is None:
            raise ImportError
    except ImportError:
        sys.exit(print("lacks", name))
place = list(found.submodule_search_locations)[0]
print("has", runpy.run_path(os.path.join(place, "version.py"))["VERSION"])
"""
"""Prints what is missing, or the version of slotmesh. Imports neither: that takes most of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """What a process is started with."""

    environment: Mapping[str, str] = field(repr=False)
    python: str = ""
    """The interpreter; empty: that of the controller."""
    cwd: Path | None = None
    """None: where the controller runs."""


class Preparations:
    """Starts that are being prepared, in threads: an interpreter or a file that hangs holds nothing else up."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[ProcessSettings, float, asyncio.Task[ProcessStart]]] = {}
        """By backend: of which settings, and when it began. One that has ended is kept for the next request."""

    async def of(self, backend: str, settings: ProcessSettings) -> ProcessStart:
        """A start that is used once. Raises LaunchFailed, and LaunchDeferred after `PREPARED_WITHIN_S`."""
        if not settings:
            return prepare_start(backend)
        now = asyncio.get_running_loop().time()
        # One that has not ended has a thread, of which there are few: it is not begun again.
        self._of = {name: it for name, it in self._of.items() if now - it[1] <= PREPARED_FOR_S or not it[2].done()}
        of, began, task = self._of.pop(backend, (None, now, None))
        if task is None or of != settings:
            began, task = now, asyncio.create_task(asyncio.to_thread(prepare_start, backend, settings))
            task.add_done_callback(lambda it: it.cancelled() or it.exception())  # one that is not used is no failure
        self._of[backend] = settings, began, task
        if not (await asyncio.wait({task}, timeout=PREPARED_WITHIN_S))[0]:
            raise LaunchDeferred(f"{backend}: its interpreter and its files are still being looked at")
        del self._of[backend]
        return task.result()


def prepare_start(backend: str, settings: ProcessSettings = NOTHING) -> ProcessStart:
    """Reads files, and has the interpreter look for slotmesh: blocks. Raises LaunchFailed."""
    try:
        return _prepared(backend, settings)
    except OSError as error:
        raise LaunchFailed(f"backend {backend}: {error.filename or 'a folder'}: {error.strerror or error}") from error


def _prepared(backend: str, settings: ProcessSettings) -> ProcessStart:
    cwd = _folder(backend, settings.cwd) if settings.cwd else None
    variables = {name: value for name, value in os.environ.items() if name not in _OF_CONTROLLER}
    python = ""
    if settings.python:
        python, of_venv = _interpreter(backend, settings.python, variables.get("PATH", ""))
        variables = {name: value for name, value in variables.items() if name not in _OF_PYTHON} | of_venv
    if settings.cpus is not None:
        variables |= dict.fromkeys(THREAD_VARIABLES, str(ceil(settings.cpus)))
    variables |= _values(backend, settings.env)
    environment = importable_here({"PYTHONUNBUFFERED": "1", **variables}, cwd)  # what a handler prints is in the file
    if python:
        _require_slotmesh(backend, python, environment, cwd)
    return ProcessStart(environment=environment, python=python, cwd=cwd)


def _folder(backend: str, path: str) -> Path:
    where, fix = f"backend {backend}: cwd: {path}", "make it, or name another folder of this machine"
    try:
        folder = Path(path).absolute()
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise LaunchFailed(f"{where} is no folder: {fix}")
    except OSError as error:
        at = "" if str(error.filename) == path else f" ({error.filename or 'the controller has no folder itself'})"
        raise LaunchFailed(f"{where}{at}: {error.strerror or error}: {fix}") from None
    if not os.access(folder, os.X_OK):
        raise LaunchFailed(f"{where} may not be entered by user {os.geteuid()}: allow it (chmod), or name another one")
    return folder


def _interpreter(backend: str, path: str, search_path: str) -> tuple[str, dict[str, str]]:
    """The file, and the variables that an activated virtual environment has. Links are kept: they make a venv."""
    found = Path(path).absolute()
    file, variables = found, dict[str, str]()
    if found.is_dir():
        file = found / "bin" / "python"
        parts = filter(None, (str(found / "bin"), search_path))
        variables = {"VIRTUAL_ENV": str(found), "PATH": os.pathsep.join(parts)}
    if not file.is_file() or not os.access(file, os.X_OK):
        raise LaunchFailed(
            f"backend {backend}: python: there is no interpreter {file}: name one, or the folder of a virtual"
            " environment"
        )
    return str(file), variables


def _values(backend: str, environment: Environment) -> dict[str, str]:
    values = dict[str, str]()
    for name, it in environment.items():
        if it.file:
            values[name] = _content(backend, name, Path(it.file).absolute())
        elif not it.inherit:
            values[name] = it.value or ""
        elif name in os.environ:
            values[name] = os.environ[name]
        else:
            raise LaunchFailed(
                f"backend {backend}: env.{name}: is to be inherited, but the controller has no variable {name}"
            )
    return values


def _content(backend: str, name: str, path: Path) -> str:
    where = f"backend {backend}: env.{name}: file {path}"
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LaunchFailed(f"{where} is no regular file")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise LaunchFailed(f"{where} cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise LaunchFailed(f"{where} is larger than {MAX_FILE_BYTES:,} bytes")
    if b"\0" in content:
        raise LaunchFailed(f"{where} has a NUL, which no variable may have")
    return os.fsdecode(content.removesuffix(b"\r\n" if content.endswith(b"\r\n") else b"\n"))


def _without_waiting(path: str, flags: int) -> int:
    """A named pipe would wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _require_slotmesh(backend: str, python: str, environment: Mapping[str, str], cwd: Path | None) -> None:
    where = f"backend {backend}: python: {python}"
    try:
        status, output = _check(python, environment, cwd)
    except subprocess.TimeoutExpired:
        raise LaunchFailed(f"{where} did not answer within {_CHECK_S:.0f} s") from None
    except OSError as error:
        raise LaunchFailed(f"{where} cannot be run: {reason_of(error)}") from None
    lines = output.decode("utf-8", errors="replace").split("\n")
    what, _, name = next((it for it in reversed(lines) if it), "").partition(" ")
    install = f"{python} -m pip install 'slotmesh=={VERSION}'"
    if what == "lacks":
        raise LaunchFailed(f"{where} has no module {name}: {install}")
    if what != "has" or status != 0:
        raise LaunchFailed(f"{where} ended with status {status}: it has to be Python 3.11 or newer")
    if not is_compatible(name):
        raise LaunchFailed(f"{where} has slotmesh {name}, which does not work with {VERSION}: {install}")


def _check(python: str, environment: Mapping[str, str], cwd: Path | None) -> tuple[int, bytes]:
    """Its status, and the beginning of what it prints. Raises OSError or TimeoutExpired: nothing of it is left."""
    process = subprocess.Popen(  # noqa: S603 - the operator's interpreter, no shell
        [python, "-c", _CHECK],
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline, output, poll = time.monotonic() + _CHECK_S, b"", select.poll()
    with process, cast("IO[bytes]", process.stdout) as out:
        poll.register(out, select.POLLIN)
        while len(output) < _MAX_CHECK_BYTES and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if not (part := os.read(out.fileno(), _MAX_CHECK_BYTES)):
                break
            output += part
        out.close()  # who prints more is ended by it
        try:
            return process.wait(max(0.0, deadline - time.monotonic())), output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the group is its own
            raise


def reason_of(error: OSError) -> str:
    """Why a process could not be started, for a person."""
    if error.errno == errno.E2BIG:
        return "its environment is larger than this system allows: have the handler read large files of env itself"
    return error.strerror or str(error)


def is_compatible(version: str, own: str = VERSION) -> bool:
    """Whether replicas of this version work with a controller of the version `own`: at most one minor release apart."""
    numbers = [[*map(int, it.split(".")[:2])] for it in (version, own) if _is_release(it)]
    return len(numbers) == 2 and numbers[0][0] == numbers[1][0] and abs(numbers[0][1] - numbers[1][1]) <= 1


def _is_release(version: str) -> bool:
    parts = version.split(".")
    return len(parts) >= 2 and all(it.isdecimal() for it in parts[:2])


def cpu_violations(backend: Backend) -> Iterator[SpecViolation]:
    """Whether a replica wants more CPUs than there are."""
    try:
        if allowed := _allowed_cpus():
            choose_cpus(backend.cpus or 0, allowed, ())
    except ValueError as error:
        yield SpecViolation(f"backends.{backend.name}.cpus", str(error))


def device_variable_violations(backend: Backend, pools: Pools, variables: Mapping[str, str]) -> Iterator[SpecViolation]:
    """Whether `env` would change which devices a replica sees. `variables`: by pool."""
    for pool, name in variables.items():
        if name in backend.env:
            text = f"is set for the devices of pool {pool}: leave it out"
            yield SpecViolation(f"backends.{backend.name}.env.{name}", text)
        if name == VISIBLE and ORDER in backend.env and any(it.isdecimal() for it in pools[pool]):
            text = f"numbers the GPUs of pool {pool} anew: set it for the controller, or name the GPUs by UUID"
            yield SpecViolation(f"backends.{backend.name}.env.{ORDER}", text)


def cpus_for(backend: str, wanted: float | None, held: Mapping[int, float]) -> frozenset[int]:
    """Those for a new replica; empty: any. `held`: the shares of living ones, by process id. Raises LaunchFailed."""
    if wanted is None or not (allowed := _allowed_cpus()):
        return frozenset()
    try:
        return choose_cpus(wanted, allowed, [(cpus, share) for pid, share in held.items() if (cpus := _cpus_of(pid))])
    except ValueError as error:
        raise LaunchFailed(f"backend {backend}: cpus: {error} on this machine") from None


@contextmanager
def pinned(cpus: frozenset[int]) -> Iterator[None]:
    """What is started meanwhile inherits the CPUs of this thread; `preexec_fn` is not safe beside threads."""
    if not cpus:
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        with suppress(OSError):  # none of them is allowed any more; what was started is known in any case
            os.sched_setaffinity(0, own)


def _allowed_cpus() -> Collection[int]:
    """Those that this process may run on; empty if the operating system does not pin processes."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()


def _cpus_of(pid: int) -> Collection[int]:
    """Those that a process is pinned to; empty if it has ended."""
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return ()
