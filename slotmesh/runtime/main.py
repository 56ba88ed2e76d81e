"""Runs every process of the mesh: event loop, logs, garbage collection, exit status.

Exit status: 0 done · 1 failed (the log has the traceback) or cannot start (one line on stderr) · 2 invalid settings ·
130 interrupted.
Invariants: users' code does not end the event loop. A SystemExit or KeyboardInterrupt from a task or callback stops a
loop immediately, `asyncio.gather(quits())` in a handler is enough; `asyncio.Runner` then cancels all tasks, those of
grpc's servers too, and grpc writes the next call into freed memory of such a task: a crash. Errors that no code awaits
are logged without arguments and `repr`s of foreign objects, and without texts of exceptions if users' code runs on the
loop: they may quote the content of calls.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

from slotmesh.config import LogFormat, LogLevel, SettingsError
from slotmesh.logs import get_logger, setup_logging, without_text
from slotmesh.runtime.allocator import keep_freed_memory
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.service_modules import check_services
from slotmesh.runtime.tasks import TaskFailed

ResultT = TypeVar("ResultT")


def run_unwound(
    runner: asyncio.Runner, main: Coroutine[Any, Any, ResultT], goes_on: Callable[[BaseException], object] | None = None
) -> ResultT:
    """As `runner.run(main)`, but a SystemExit outside of `main` does not stop the loop immediately.

    The loop continues, with all its tasks, and `goes_on` is called with the exception. Without `goes_on`, `main` is
    cancelled and awaited before the exception is raised, so that `main` closes what it opened in order, while all other
    tasks still run.
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


def log_loop_errors(loop: asyncio.AbstractEventLoop, *, texts: bool = True) -> None:
    """Logs errors that no code awaits, in place of asyncio's own report. `texts`: with the texts of exceptions."""
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
        what = "a task failed, and nothing awaited it" if error is not None else "a task was dropped before its end"
        _log.error(what, task=future.get_name(), of=_name(future.get_coro()), exc_info=error)
    else:
        what = "something failed on the event loop, and no task awaited it"
        _log.error(what, of=type(future).__name__ if future is not None else "", exc_info=error)


def _name(code: object) -> str:
    """The name as in a traceback; for a `partial`, that of its function."""
    code = getattr(code, "func", code)
    return str(getattr(code, "__qualname__", type(code).__name__))


_log = get_logger(__name__)

_COLLECT_AFTER: Final = (5_000, 5, 40)
"""Thresholds: new objects, young collections, older ones. A waiting call has about 20 objects in a replica: with
Python's
defaults (700, 10, 10) ten thousand of them would be scanned several times while they wait, 50 ms each."""


def run(
    main: Callable[[], Coroutine[Any, Any, int | None]],
    *,
    log_format: LogFormat = "console",
    log_level: LogLevel = "info",
    log_fields: Mapping[str, str] = MappingProxyType({}),
    log_facts: Callable[[], Mapping[str, str]] = dict,
) -> NoReturn:
    """Runs the coroutine on a new event loop (uvloop if installed) and exits with its status; None is 0.

    `log_fields`: in every log line of the process; `log_facts` adds fields at the time of the line.
    """
    setup_logging(log_format, log_level, log_fields, log_facts)
    sys.exit(_run(main))


def _run(main: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    # Excludes the modules imported so far from garbage collection.
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    keep_freed_memory()
    try:
        check_services(sys.path)
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
        return 1  # the supervisor logged it
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 - the outermost frame: logged, and reported by the exit status
        _log.exception("failed")
        return 1


def _went_on(error: BaseException) -> None:
    """Logs that a foreign task or a callback raised SystemExit, and the event loop continues."""
    _log.error("a task tried to end the process, which goes on", exc_info=without_text(error))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop
