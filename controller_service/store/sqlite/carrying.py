"""State files to and from JSON, for `--export-state` and `--import-state`: no controller runs for it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from controller_service.store.bad_document import BadDocument
from controller_service.store.sqlite.refusals import StateRefused
from controller_service.store.sqlite.state_file import create_file, read_file
from controller_service.store.state_document import export_state, import_state
from slotmesh.ids import new_id

REFUSED = 1
"""Exit status: the file cannot be used, and stderr says why."""
_STDIN = "-"


def print_export(state: str) -> int:
    """Prints the state of a file, which a controller may have in use. Returns the exit status."""
    try:
        sys.stdout.write(export_state(*read_file(Path(state))))
    except StateRefused as refusal:
        sys.stderr.write(f"{refusal}\n")
        return REFUSED
    return 0


def import_into(state: str, document: str) -> int:
    """Makes a state file of an export, `-` being stdin. Returns the exit status.

    It has the configuration and its history, and a generation of its own: which replicas there are, and who owns which
    keys, its controller learns from routers.
    """
    try:
        text = sys.stdin.buffer.read() if document == _STDIN else Path(document).read_bytes()
        desired = import_state(text, epoch_floor=int(time.time() * 1e3))
        create_file(Path(state), new_id(), desired)
    except BadDocument as mistake:
        sys.stderr.write(f"{document}: {mistake}\n")
        return REFUSED
    except OSError as error:
        sys.stderr.write(f"{document}: {error.strerror or error}\n")
        return REFUSED
    except StateRefused as refusal:
        sys.stderr.write(f"{refusal}\n")
        return REFUSED
    said = f"{len(desired.backends)} backends, {len(desired.endpoints)} endpoints, {len(desired.history)} revisions"
    sys.stderr.write(f"{state}: written, with {said}\n")
    return 0
