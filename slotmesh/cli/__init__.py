"""The command line: `commands/`, a file each; `view/`, what they print; `local/`, a mesh on this machine."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from slotmesh.names import is_utf8
from slotmesh.runtime.environment import set_grpc_environment
from slotmesh.runtime.inherited_state import undo_inherited_state

_ESCAPES: Final = "slotmesh-escapes"


def _escape_unencodable() -> None:
    """Characters that the encoding of stdout lacks are written by their numbers, as in JSON, in place of an error."""
    codecs.register_error(_ESCAPES, _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors=_ESCAPES)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError) or not is_utf8(text := error.object[error.start : error.end]):
        raise error
    return json.dumps(text)[1:-1], error.end


def main() -> None:
    """Entry point of `slotmesh` and of `python -m slotmesh.cli`."""
    undo_inherited_state()
    _escape_unencodable()
    with _ended_by_interrupt():
        set_grpc_environment()
        from slotmesh.cli.command_table import COMMANDS, command_line  # noqa: PLC0415 - it loads gRPC

        if sys.argv[1:] and (name := sys.argv[1]) in COMMANDS:
            run = command_line([name])
        else:
            from slotmesh.cli.app import app as run  # noqa: PLC0415 - it loads all commands
    try:
        run()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _give_up_output(error)
    except UnicodeEncodeError as error:
        if (given := next((it for it in sys.argv[1:] if not is_utf8(it)), None)) is None:
            raise
        from slotmesh.cli.console import WRONG_INPUT, say  # noqa: PLC0415 - the command has loaded it

        say(f"an argument is no UTF-8, as names, keys and values have to be: {given!a}", err=True)
        raise SystemExit(WRONG_INPUT) from error


_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a disk to which output is redirected. Commands handle those of the files that they write themselves."""


def _give_up_output(error: OSError) -> NoReturn:
    from slotmesh.cli.console import FAILED  # noqa: PLC0415 - the command has loaded it

    with suppress(OSError):
        sys.stderr.write(f"the output cannot be written: {error.strerror}\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is left of it, which is written at the end
    raise SystemExit(FAILED) from error


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process as the signal does by default: nothing has begun that would need Python for its end."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:  # as where the one that started it has it ignored
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
