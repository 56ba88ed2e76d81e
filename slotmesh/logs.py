"""Logs: events with fields, as `key=value` for a console or as JSON for machines, to stderr.

Purpose: all logging goes through the standard library, including gRPC and third-party packages, so an application that
embeds a part of slotmesh keeps its own set-up, and the services have one format.
Invariants: an event is a short constant text, its details are fields; calls log nothing when they succeed. The audit
log is written at every level. An exception is logged as its type, its text and the lines of its traceback, in either
format, never with the values of variables. A field is one line, and contains no control characters for a terminal.
`without_text` removes the texts of exceptions that a handler raised, as they may quote the content of the call.
Imports only the standard library and `slotmesh.names`: every process and every command loads this module at its start.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final

from slotmesh.names import LINES, printable_text

FIELDS: Final = "slotmesh_fields"
"""Attribute of a log record that carries the event and its fields."""

MAX_FRAMES: Final = 50
"""Of one traceback in JSON; of a longer one the first and the last are written."""
_EVENT_CHARS: Final = 30
"""Width of the column of events on a console."""
_LEVEL_CHARS: Final = 9
_QUOTED: Final = frozenset(" \t=\r\n\"'")
"""A text with one of these is shown as a literal."""

_BRIGHT, _DIM, _RESET = "\033[1m", "\033[2m", "\033[0m"
_CYAN, _MAGENTA, _BLUE = "\033[36m", "\033[35m", "\033[34m"
_LEVELS: Final = {
    "critical": "\033[31m",
    "error": "\033[31m",
    "warning": "\033[33m",
    "info": "\033[32m",
    "debug": "\033[32m",
}


class _Lines(logging.Formatter):
    """Base of both formats."""

    def __init__(self, fields: Mapping[str, str], facts: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._fields = fields
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        """The line. If the class of an exception raises while its traceback is formatted, the exception is left out."""
        try:
            return self._line(record, record.exc_info if record.exc_info and record.exc_info[1] else None)
        except BaseException:
            if not record.exc_info:
                raise
            record.exc_info = record.exc_text = None
            return f"{self._line(record, None)} (its exception cannot be shown)"

    def _line(self, record: logging.LogRecord, exc_info: Any) -> str:
        raise NotImplementedError

    def _values(self, record: logging.LogRecord) -> dict[str, Any]:
        """The event and all fields, those of the process first."""
        event, fields = getattr(record, FIELDS, (None, {}))
        values = {"event": record.getMessage() if event is None else event, **fields}
        if record.stack_info:
            values["stack_info"] = record.stack_info
        return {
            **self._fields,
            **self._facts(),
            **values,
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": datetime.now(tz=UTC).isoformat().replace("+00:00", "Z"),
        }


class JsonLines(_Lines):
    """An object for each record."""

    def _line(self, record: logging.LogRecord, exc_info: Any) -> str:
        values = self._values(record)
        if exc_info is not None:
            values["exception"] = _chain(*exc_info)
        return json.dumps(values, default=str)


class ConsoleLines(_Lines):
    """Time, level, event and logger in columns, then the fields by name; below it the traceback."""

    def __init__(self, fields: Mapping[str, str], facts: Callable[[], Mapping[str, str]], *, has_colours: bool) -> None:
        super().__init__(fields, facts)
        self._has_colours = has_colours

    def _line(self, record: logging.LogRecord, exc_info: Any) -> str:
        values = self._values(record)
        time, level, logger = values.pop("timestamp"), values.pop("level"), values.pop("logger")
        event = printable_text(str(values.pop("event")), LINES).ljust(_EVENT_CHARS)
        style = self._code
        columns = [
            f"{style(_DIM)}{time}{style(_RESET)}",
            f"[{style(_LEVELS.get(level, '') + _BRIGHT)}{level.ljust(_LEVEL_CHARS)}{style(_RESET)}]",
            f"{style(_BRIGHT)}{event}{style(_RESET)}",
            f"[{style(_RESET)}{style(_BRIGHT + _BLUE)}{logger}{style(_RESET)}]{style(_RESET)}",
        ]
        columns += (
            f"{style(_CYAN)}{key}{style(_RESET)}={style(_MAGENTA)}{_literal(values[key])}{style(_RESET)}"
            for key in sorted(values)
        )
        line = " ".join(columns).rstrip(" ")
        if exc_info is not None:
            trace = "".join(traceback.format_exception(*exc_info)).removesuffix("\n")
            line += f"\n{printable_text(trace, LINES)}"
        return line

    def _code(self, codes: str) -> str:
        return codes if self._has_colours else ""


def _literal(value: object) -> str:
    """The text as it is if it is plain; else as a Python literal, which contains no control characters."""
    if isinstance(value, str) and value.isprintable() and not _QUOTED.intersection(value):
        return value
    return printable_text(repr(value))


def _chain(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None, seen: set[int] | None = None
) -> list[dict[str, Any]]:
    """An exception and its causes and contexts, each with its frames: files, lines and names."""
    seen = set() if seen is None else seen
    found: list[dict[str, Any]] = []
    is_cause = False
    while id(error) not in seen:
        seen.add(id(error))
        found.append(_described(kind, error, frames, seen, is_cause=is_cause))
        cause, context = error.__cause__, error.__context__
        if cause and cause.__traceback__:
            following, is_cause = cause, True
        elif context and context.__traceback__ and not error.__suppress_context__:
            following, is_cause = context, False
        else:
            break
        kind, error, frames = type(following), following, following.__traceback__
    return found


def _described(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None, seen: set[int], *, is_cause: bool
) -> dict[str, Any]:
    is_group = isinstance(error, BaseExceptionGroup)
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return {
        "exc_type": kind.__name__,
        "exc_value": _text(error),
        "exc_notes": [_text(note) for note in getattr(error, "__notes__", ())],
        "syntax_error": _syntax(error) if isinstance(error, SyntaxError) else None,
        "is_cause": is_cause,
        "frames": _frames(frames),
        "is_group": is_group,
        "exceptions": [_chain(type(each), each, each.__traceback__, seen) for each in members],
    }


def _syntax(error: SyntaxError) -> dict[str, Any]:
    return {
        "offset": error.offset or 0,
        "filename": error.filename or "?",
        "line": error.text or "",
        "lineno": error.lineno or 0,
        "msg": error.msg,
    }


def _frames(first: TracebackType | None) -> list[dict[str, Any]]:
    found = [
        {"filename": _file(frame.f_code.co_filename), "lineno": line, "name": frame.f_code.co_name}
        for frame, line in traceback.walk_tb(first)
    ]
    half = MAX_FRAMES // 2
    if len(found) > MAX_FRAMES:
        skipped = {"filename": "", "lineno": -1, "name": f"Skipped frames: {len(found) - 2 * half}"}
        found[half:-half] = [skipped]
    return found


def _file(name: str) -> str:
    return str(Path(name).absolute()) if name and not name.startswith("<") else name or "?"


def _text(value: object) -> str:
    """The text of a value, whose `__str__` may raise."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - third-party code
        return f"<str-error {str(error)!r}>"


AUDIT_LOGGER: Final = "slotmesh.audit"
"""Written at every log level: operators who keep the audit log want it complete."""


class FieldLogger:
    """A logger that takes fields: `log.info("listening", address=...)`. Works whether or not logs were set up.

    `exc_info` is an exception, or true for the one that is handled; all other keywords are fields.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An error, with the traceback of the exception that is handled."""
        self._write(logging.ERROR, event, {"exc_info": True, **fields})

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of the standard library
        return self._logger.isEnabledFor(level)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        """Makes a record of the standard library, readable without our format, with the fields beside it."""
        if not self._logger.isEnabledFor(level):
            return
        options: dict[str, Any] = {key: fields.pop(key) for key in ("exc_info", "stack_info") if key in fields}
        readable = " ".join([event, *(f"{key}={_shown(value)}" for key, value in fields.items())])
        # Without arguments, a percent sign in the text is no placeholder.
        self._logger.log(level, readable, extra={FIELDS: (event, fields)}, stacklevel=3, **options)


def get_logger(name: str) -> FieldLogger:
    """The logger of a module, which takes fields."""
    return FieldLogger(logging.getLogger(name))


def setup_logging(
    log_format: str = "console",
    log_level: str = "info",
    fields: Mapping[str, str] = MappingProxyType({}),
    facts: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Sends all logs of the process to stderr in one format. For programs: a library leaves this to its application.

    `log_format` is `console` or `json`; `log_level` is the name of the least severe level; `fields` are added to all
    that is logged, such as the name of the service, and so is the result of `facts` at that moment, such as the call.
    May be called again.
    """
    is_json = log_format == "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines(fields, facts) if is_json else ConsoleLines(fields, facts, has_colours=sys.stderr.isatty())
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(log_level.upper())
    logging.getLogger(AUDIT_LOGGER).setLevel(min(root.level, logging.INFO))
    logging.captureWarnings(True)


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() else repr(text)


MAX_EXCEPTIONS: Final = 100
"""Of one chain and its groups; further ones are left out."""


def without_text(error: BaseException) -> BaseException:
    """A stand-in to log in place of an exception that may quote the content of a call, such as `int("secret")`.

    It has the type's name, the frames, causes, contexts and members of a group; no text, no note, no argument, and
    nothing of a SyntaxError's line. The exception itself is not changed.
    """
    return _StandIns().of(error)


class _StandIns:
    """Stand-ins of one chain of exceptions, which may have cycles."""

    def __init__(self) -> None:
        self._met: set[int] = set()
        self._made: dict[int, BaseException] = {}

    def of(self, error: BaseException) -> BaseException:
        self._met.add(id(error))
        made = self._made[id(error)] = _like(type(error), self._members(error))
        made.__traceback__ = error.__traceback__
        made.__cause__, made.__context__ = self._linked(error.__cause__), self._linked(error.__context__)
        made.__suppress_context__ = error.__suppress_context__  # a cause sets it
        return made

    def _members(self, error: BaseException) -> list[BaseException]:
        if not isinstance(error, BaseExceptionGroup):
            return []
        return [made for each in error.exceptions if (made := self._linked(each)) is not None]

    def _linked(self, error: BaseException | None) -> BaseException | None:
        if error is None or id(error) in self._met or len(self._met) >= MAX_EXCEPTIONS:
            return None if error is None else self._made.get(id(error))
        return self.of(error)


def _like(kind: type[BaseException], members: list[BaseException]) -> BaseException:
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    if members:
        group: type[BaseExceptionGroup[BaseException]] = type(kind.__name__, (BaseExceptionGroup,), named)
        return group("", members)
    plain: type[BaseException] = type(kind.__name__, (BaseException,), named)
    return plain()
