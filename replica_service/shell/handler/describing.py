"""What `--describe MODULE:NAME` prints: one JSON object on stdout, and nothing else there."""

from __future__ import annotations

import contextlib
import json
import sys

from replica_service.shell.handler.binding import bind_methods
from replica_service.shell.handler.loading import load_handler
from replica_service.shell.handler.tracebacks import users_traceback
from slotmesh.handlers import CALL, describe
from slotmesh.runtime.exits import CannotStart


def print_description(path: str) -> int:
    """Imports the handler and prints the settings of its decorators; returns the exit status."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's module prints is no part of the answer
            handler = load_handler(path)
            try:
                description = describe(handler)
                methods = bind_methods(handler, description)
            except TypeError as error:
                raise CannotStart(f"{path!r}: {error}") from None
    except CannotStart as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - the user's own: shown as it is
        sys.stderr.write(users_traceback(error))
        return 1
    document = {"handler": path, **description.as_json()}
    for name, method in methods.items():
        described = document["methods"].get(name or CALL)  # an rpc of the user's proto is a second name of a method
        if described is not None and method.outline.schema:
            described["schema"] = json.loads(method.outline.schema)
    sys.stdout.write(json.dumps(document) + "\n")
    return 0
