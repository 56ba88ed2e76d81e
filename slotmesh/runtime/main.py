"""The frame around every process of the mesh: event loop, logs, exit status.

Exit status: 0 done · 1 failed (the log has the traceback) or cannot start (one line on stderr) · 2 wrong settings ·
130 interrupted.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from slotmesh.config import LogFormat, LogLevel, SettingsError
from slotmesh.runtime.allocator import keep_freed_memory
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.loop_errors import log_loop_errors
from slotmesh.runtime.tasks import TaskFailed
from slotmesh.runtime.unwinding import run_unwound
from slotmesh.telemetry.log import get_logger, setup_logging
from slotmesh.telemetry.textless import without_text

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
