"""How a process ends when it cannot do its work: with words for the operator, not with a traceback."""

from __future__ import annotations


class CannotStart(Exception):
    """The process cannot begin its work; the message says why and what to do. `run` prints it and exits."""

    exit_code = 1
    """Exit status of the process."""
