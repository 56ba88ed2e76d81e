"""The frame around every process of the mesh: event loop, logs, exit status.

Exit status: 0 done · 1 failed (the log has the traceback) or cannot start (one line on stderr) · 2 wrong settings ·
130 interrupted.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

from slotmesh.config import LogFormat, LogLevel, SettingsError
from slotmesh.logs import get_logger, setup_logging, without_text
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.tasks import TaskFailed

# An event loop that foreign code does not end.
#
# SystemExit or KeyboardInterrupt out of a task or a callback stops a loop where it stands: `asyncio.gather(quits())` in
# a
# handler is enough. The task in which it was raised has it as its outcome, and so has the call that awaits that; but
# `asyncio.Runner` then cancels all tasks of the loop, those of grpc's servers too. What such a server has asked for,
# the
# next call, is written by grpc into memory that was its task's: a crash, now or later. A server that was stopped has
# asked for nothing.

ResultT = TypeVar("ResultT")


def run_unwound(
    runner: asyncio.Runner,
    main: Coroutine[Any, Any, ResultT],
    goes_on: Callable[[BaseException], object] | None = None,
) -> ResultT:
    """As `runner.run(main)`, but that SystemExit out of anything but `main` does not end the loop where it stands.

    `goes_on` is called with it, and the loop goes on, with all its tasks. Without that, `main` is cancelled and awaited
    before it is raised: what `main` opened is closed by then, in its order, while all other tasks still run.
    """
    tasks: list[asyncio.Task[ResultT]] = []

    async def run() -> ResultT:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if task is not None:
            tasks.append(task)
        return await main

    work: Coroutine[Any, Any, Any] = run()
    while True:
        try:
            result = runner.run(work)
        except (SystemExit, KeyboardInterrupt) as error:
            if not tasks or tasks[0].done():
                raise
            if goes_on is None:
                tasks[0].cancel()
                runner.run(_ended(tasks[0]))
                raise
            goes_on(error)
            work = _ended(tasks[0])
        else:
            return tasks[0].result() if tasks else result


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


# Logs errors on an event loop that no code awaits: of tasks left behind, callbacks, generators that were not closed.
#
# Purpose: in place of asyncio's own report, which shows the arguments of callbacks.
# Invariants: what is logged has names, types and texts of exceptions, and their tracebacks; no arguments, and no `repr`
# of an object that is not ours. No texts where users' code runs on the loop: they may quote what calls have sent.


def log_loop_errors(loop: asyncio.AbstractEventLoop, *, texts: bool = True) -> None:
    """Has the loop log errors that no code awaits by this module. `texts`: with the texts of exceptions."""
    loop.set_exception_handler(partial(_log_error, texts))


def _log_error(texts: bool, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if error is not None and not texts:
        error = without_text(error)
    handle, future = context.get("handle"), context.get("task") or context.get("future")
    if handle is not None:
        _log.error(
            "a callback of the event loop failed", callback=_name(getattr(handle, "_callback", None)), exc_info=error
        )
    elif isinstance(future, asyncio.Task):
        what = "a task failed, and nobody waited for it" if error is not None else "a task was dropped before its end"
        _log.error(what, task=future.get_name(), of=_name(future.get_coro()), exc_info=error)
    else:
        what = "something failed on the event loop, and nobody waited for it"
        _log.error(what, of=type(future).__name__ if future is not None else "", exc_info=error)


def _name(code: object) -> str:
    """What a traceback calls it. A `partial` is what it calls."""
    code = getattr(code, "func", code)
    return str(getattr(code, "__qualname__", type(code).__name__))


# How much freed memory a process keeps for the next frames, where the C library is glibc.
#
# Frames of hundreds of kilobytes come and go thousands of times a second. By glibc's own figures each goes back to the
# kernel when it is freed, and is mapped, zeroed and faulted in again: a quarter of the processor time of a call with a
# payload of 1 KB (docs/performance.md).

_SETTINGS: Final = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 64 << 20),
    "MALLOC_MMAP_THRESHOLD_": (-3, 4 << 20),
}
"""glibc's environment variable, its parameter of mallopt(3), and our value in bytes: up to 64 MiB that are free at the
end of the heap stay, and blocks of up to 4 MiB, as messages are, come from the heap."""


def keep_freed_memory() -> None:
    """Once, when a process starts. What is set in the environment stays; nothing happens without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for variable, (parameter, value) in _SETTINGS.items():
        if variable not in os.environ:
            mallopt(parameter, value)


_log = get_logger(__name__)

_COLLECT_AFTER: Final = (5_000, 5, 40)
"""New objects, young collections, older ones. A call that waits is about 20 objects in a replica: by Python's own
figures (700, 10, 10) ten thousand of them have everything looked at several times while they wait, 50 ms each."""


def run(
    main: Callable[[], Coroutine[Any, Any, int | None]],
    *,
    log_format: LogFormat = "console",
    log_level: LogLevel = "info",
    log_fields: Mapping[str, str] = MappingProxyType({}),
    log_facts: Callable[[], Mapping[str, str]] = dict,
) -> NoReturn:
    """Runs the coroutine on a fresh event loop (uvloop where there is one) and exits with its status; None is 0.

    `log_fields` are in all that the process logs, and what `log_facts` says where something is logged.
    """
    setup_logging(log_format, log_level, log_fields, log_facts)
    sys.exit(_run(main))


def _run(main: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    # Modules that are imported by now stay: no collection needs to look at them again.
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    keep_freed_memory()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            log_loop_errors(runner.get_loop())
            return run_unwound(runner, main(), _went_on) or 0
    except KeyboardInterrupt:
        return 130
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return SettingsError.exit_code
    except CannotStart as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except TaskFailed:
        return 1  # its supervisor logged it
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 - the outermost frame: logged, and told by the exit status
        _log.exception("failed")
        return 1


def _went_on(error: BaseException) -> None:
    """A task that foreign code has started, or a callback, would have ended the event loop."""
    _log.error("a task tried to end the process, which goes on", exc_info=without_text(error))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop
