"""What `--describe MODULE:NAME` prints: one JSON object on stdout, and nothing else there."""

from __future__ import annotations

import contextlib
import json
import sys
import traceback

from replica_service.shell.loading import load_handler
from slotmesh.handlers import describe
from slotmesh.runtime.exits import CannotStart


def print_description(path: str) -> int:
    """Imports the handler and prints what its decorators say; returns the exit status."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's module prints is no part of the answer
            description = describe(load_handler(path))
    except CannotStart as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except Exception:  # noqa: BLE001 - the user's own: shown as it is
        traceback.print_exc()
        return 1
    sys.stdout.write(json.dumps({"handler": path, **description.as_json()}) + "\n")
    return 0
