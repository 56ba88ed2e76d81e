"""What `--describe MODULE:NAME` prints: one JSON object on stdout, and nothing else there."""

from __future__ import annotations

import contextlib
import json
import sys

from replica_service.shell.handler.loading import load_handler
from replica_service.shell.handler.tracebacks import users_traceback
from slotmesh.handlers import describe
from slotmesh.runtime.exits import CannotStart


def print_description(path: str) -> int:
    """Imports the handler and prints the settings of its decorators; returns the exit status."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's module prints is no part of the answer
            handler = load_handler(path)
            try:
                description = describe(handler)
            except TypeError as error:
                raise CannotStart(f"{path!r}: {error}") from None
    except CannotStart as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - the user's own: shown as it is
        sys.stderr.write(users_traceback(error))
        return 1
    sys.stdout.write(json.dumps({"handler": path, **description.as_json()}) + "\n")
    return 0
