"""Logs: events with fields, `key=value` on a console or JSON for machines, to stderr.

Purpose: everything that logs goes through the standard library, gRPC and other people's packages included, so an
application that embeds a part of slotmesh keeps its own set-up, and the services have one format.
Invariants: an event is a short constant text, what differs is a field; no log call on the path of a call. An exception
is its type, its text and the lines of its traceback, in either format: never the values of variables. A field is one
line, whatever it holds, and steers no terminal. The audit log is written at every level.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, ProcessorReturnValue, WrappedLogger

from slotmesh.printable_text import LINES, printable_text

AUDIT_LOGGER: Final = "slotmesh.audit"
"""Its lines are written whatever the level says: who keeps them wants all."""

_FIELDS = "slotmesh_fields"
"""Attribute of a log record that carries the event's fields."""

_WITHOUT_LOCALS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
"""Tracebacks as lists of frames: files, lines and names."""


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger that takes fields: `log.info("listening", address=...)`. Works whether or not logs were set up."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _to_record],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return logger


def setup_logging(
    log_format: str = "console",
    log_level: str = "info",
    fields: Mapping[str, str] = MappingProxyType({}),
    facts: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Sends all logs of the process to stderr in one format. For programs: a library leaves this to its application.

    `log_format` is `console` or `json`; `log_level` is the name of the least severe level; `fields` are in all that is
    logged, such as who logs it; and so is what `facts` says where something is logged, such as for which call. May be
    called again.
    """

    def add_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> ProcessorReturnValue:
        return {**fields, **facts(), **event}

    renderers: list[structlog.typing.Processor]
    if log_format == "json":
        renderers = [_WITHOUT_LOCALS, structlog.processors.JSONRenderer(default=str)]
    else:
        renderers = [
            _with_printable_fields,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_print_traceback),
        ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _GuardedFormatter(
            foreign_pre_chain=[
                _from_record,
                add_fields,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(log_level.upper())
    logging.getLogger(AUDIT_LOGGER).setLevel(min(root.level, logging.INFO))
    logging.captureWarnings(True)


class _GuardedFormatter(structlog.stdlib.ProcessorFormatter):
    """An exception whose class raises as its traceback is written is left out of its line."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            return super().format(record)
        except BaseException:
            if not record.exc_info:
                raise
            record.exc_info = record.exc_text = None
            return f"{super().format(record)} (its exception cannot be shown)"


def _to_record(_logger: WrappedLogger, _method: str, event: EventDict) -> ProcessorReturnValue:
    """Last step of our loggers: a record of the standard library, readable without us, with the fields beside it."""
    text = event.pop("event", "")
    options: dict[str, Any] = {key: event.pop(key) for key in ("exc_info", "stack_info") if key in event}
    if isinstance(error := options.get("exc_info"), BaseException):
        options["exc_info"] = (type(error), error, error.__traceback__)
    readable = " ".join([str(text), *(f"{key}={_shown(value)}" for key, value in event.items())])
    return (readable,), {"extra": {_FIELDS: (text, event)}, **options}


def _from_record(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """First step of our format: the event and its fields again, where the record is of ours."""
    text, fields = getattr(event["_record"], _FIELDS, (None, {}))
    if text is not None:
        event["event"] = text
        event.update(fields)
    return event


def _with_printable_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Before a console: nothing that a field holds steers a terminal. What others log may have several lines."""
    for key, value in event.items():
        if key == "event":
            event[key] = printable_text(str(value), LINES)
        elif isinstance(value, str) and not value.isprintable():
            event[key] = _Quoted(value)
    return event


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() else repr(text)


class _Quoted:
    """A text that a console shows as a literal."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _print_traceback(out: TextIO, exc_info: ExcInfo) -> None:
    whole = io.StringIO()
    structlog.dev.plain_traceback(whole, exc_info)
    out.write(printable_text(whole.getvalue(), LINES))
