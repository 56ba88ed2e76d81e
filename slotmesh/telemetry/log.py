"""Logs: events with fields, `key=value` on a console or JSON for machines, to stderr.

Purpose: everything that logs goes through the standard library, gRPC and other people's packages included, so an
application that embeds a part of slotmesh keeps its own set-up, and the services have one format.
Invariants: an event is a short constant text, what differs is a field; no log call on the path of a call. The audit log
is written at every level. What a line looks like is in `slotmesh.telemetry.log_lines`. Only the standard library is
imported: every process and every command loads this module as it starts.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from slotmesh.telemetry.log_lines import FIELDS, ConsoleLines, JsonLines

AUDIT_LOGGER: Final = "slotmesh.audit"
"""Its lines are written whatever the level says: who keeps them wants all."""


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
        # Without arguments the text is taken as it is: a percent sign is no placeholder.
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

    `log_format` is `console` or `json`; `log_level` is the name of the least severe level; `fields` are in all that is
    logged, such as who logs it; and so is what `facts` says where something is logged, such as for which call. May be
    called again.
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
