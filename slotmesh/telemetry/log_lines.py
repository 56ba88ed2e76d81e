"""The lines of a log: a record of the standard library as `key=value` for a console, or as JSON for machines.

Invariants: an exception is its type, its text and the lines of its traceback, in either format, and never the values of
variables. A field is one line, whatever it holds, and steers no terminal.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from slotmesh.printable_text import LINES, printable_text

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
        """The line. An exception whose class raises as its traceback is written is left out of it."""
        try:
            return self._line(record, record.exc_info if record.exc_info and record.exc_info[1] else None)
        except BaseException:
            if not record.exc_info:
                raise
            record.exc_info = record.exc_text = None
            return f"{self._line(record, None)} (its exception cannot be shown)"

    def _line(self, record: logging.LogRecord, exc_info: Any) -> str:
        raise NotImplementedError

    def _said(self, record: logging.LogRecord) -> dict[str, Any]:
        """The event and all fields, those of the process first."""
        event, fields = getattr(record, FIELDS, (None, {}))
        said = {"event": record.getMessage() if event is None else event, **fields}
        if record.stack_info:
            said["stack_info"] = record.stack_info
        return {
            **self._fields,
            **self._facts(),
            **said,
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": datetime.now(tz=UTC).isoformat().replace("+00:00", "Z"),
        }


class JsonLines(_Lines):
    """An object for each record."""

    def _line(self, record: logging.LogRecord, exc_info: Any) -> str:
        said = self._said(record)
        if exc_info is not None:
            said["exception"] = _chain(*exc_info)
        return json.dumps(said, default=str)


class ConsoleLines(_Lines):
    """Time, level, event and logger in columns, then the fields by name; below it the traceback."""

    def __init__(self, fields: Mapping[str, str], facts: Callable[[], Mapping[str, str]], *, has_colours: bool) -> None:
        super().__init__(fields, facts)
        self._has_colours = has_colours

    def _line(self, record: logging.LogRecord, exc_info: Any) -> str:
        said = self._said(record)
        time, level, logger = said.pop("timestamp"), said.pop("level"), said.pop("logger")
        event = printable_text(str(said.pop("event")), LINES).ljust(_EVENT_CHARS)
        style = self._code
        columns = [
            f"{style(_DIM)}{time}{style(_RESET)}",
            f"[{style(_LEVELS.get(level, '') + _BRIGHT)}{level.ljust(_LEVEL_CHARS)}{style(_RESET)}]",
            f"{style(_BRIGHT)}{event}{style(_RESET)}",
            f"[{style(_RESET)}{style(_BRIGHT + _BLUE)}{logger}{style(_RESET)}]{style(_RESET)}",
        ]
        columns += (
            f"{style(_CYAN)}{key}{style(_RESET)}={style(_MAGENTA)}{_literal(said[key])}{style(_RESET)}"
            for key in sorted(said)
        )
        line = " ".join(columns).rstrip(" ")
        return line if exc_info is None else f"{line}\n{_printed(exc_info)}"

    def _code(self, codes: str) -> str:
        return codes if self._has_colours else ""


def _literal(value: object) -> str:
    """As it is where that is plain; else as Python writes it, so that nothing steers the terminal."""
    if isinstance(value, str) and value.isprintable() and not _QUOTED.intersection(value):
        return value
    return printable_text(repr(value))


def _printed(exc_info: Any) -> str:
    return printable_text("".join(traceback.format_exception(*exc_info)).removesuffix("\n"), LINES)


def _chain(
    kind: type[BaseException],
    error: BaseException,
    frames: TracebackType | None,
    seen: set[int] | None = None,
) -> list[dict[str, Any]]:
    """An exception and what it came of, each with its frames: files, lines and names."""
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
    """A text that is asked for may be of a class whose `__str__` fails."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - the text of others
        return f"<str-error {str(error)!r}>"
