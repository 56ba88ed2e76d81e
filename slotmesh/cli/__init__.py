"""The command line: `commands/`, a file each; `view/`, what they print; `local/`, a mesh on this machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slotmesh.names import is_utf8
from slotmesh.runtime.environment import set_grpc_environment


def main() -> None:
    """Entry point of `slotmesh` and of `python -m slotmesh.cli`."""
    with _ended_by_interrupt():
        set_grpc_environment()
        from slotmesh.cli.command_table import COMMANDS, command_line  # noqa: PLC0415 - it loads gRPC

        if sys.argv[1:] and (name := sys.argv[1]) in COMMANDS:
            run = command_line([name])
        else:
            from slotmesh.cli.app import app as run  # noqa: PLC0415 - it loads all commands
    try:
        run()
    except UnicodeEncodeError as error:
        if (given := next((it for it in sys.argv[1:] if not is_utf8(it)), None)) is None:
            raise
        from slotmesh.cli.console import WRONG_INPUT, say  # noqa: PLC0415 - the command has loaded it

        say(f"an argument is no UTF-8, as names, keys and values have to be: {given!a}", err=True)
        raise SystemExit(WRONG_INPUT) from error


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
