"""Files: specifications, settings, exports of the state, and state files as SQLite has them."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from controller_service.config import ControllerSettings
from controller_service.core.desired.state import Desired
from controller_service.store.forms import BadDocument
from controller_service.store.protocol import StateRefused
from controller_service.store.rows import checksum_of
from controller_service.store.sqlite.state_file import StateFile
from controller_service.store.state_document import FORMAT, VERSION, import_state
from slotmesh.config import SettingsError
from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import InvalidSpec
from tests.fuzz.source import Source

_KINDS: Final = ("backend", "endpoint", "ownership", "member", "roster", "revision", "rollout", "shift", "applied", "?")
_NAMES: Final = ("", "b", "e", "1", "2", "backend/b", "endpoint/e", "x")
_KEYS: Final = (
    "handler", "num_replicas", "autoscale", "user_config", "traffic", "shadows", "weights", "owner", "owners", "epochs",
    "base_epoch", "partition_owners", "revision", "base", "who", "time_s", "note", "changes", "subject", "before",
    "after", "members", "departed", "generation", "leaving", "inherited", "covers", "departed_since", "left_at",
)  # fmt: skip
_SECTIONS: Final = ("backends", "endpoints", "applied", "history", "ownership")
_MAX_DEPTH: Final = 4


@contextmanager
def specs() -> Iterator[Callable[[bytes], object]]:
    def run(data: bytes) -> None:
        with suppress(InvalidSpec):
            parse_mesh(data)

    yield run


@contextmanager
def settings() -> Iterator[Callable[[bytes], object]]:
    """A file of settings, and flags."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings.yaml")

        def run(data: bytes) -> None:
            flags, _, content = data.partition(b"\n---\n")
            path.write_bytes(content)
            argv = [each.decode("utf-8", "replace") for each in flags.split(b"\n") if b"help" not in each]
            with suppress(SettingsError):
                ControllerSettings.parse([f"--config={path}", *argv], {}, prog="controller")

        yield run


@contextmanager
def exports() -> Iterator[Callable[[bytes], object]]:
    """Exports of a state: any text, or a document with the right head."""

    def run(data: bytes) -> None:
        source = Source(data)
        text: str | bytes = data
        if not data.startswith(b"{"):
            head = {"format": FORMAT, "version": VERSION, "revision": 1, "configured_at": 1, "epoch_floor": 0}
            sections = {name: json_document(source) for name in _SECTIONS}
            text = json.dumps({**head, **{name: it for name, it in sections.items() if it}})
        with suppress(BadDocument):
            import_state(text, epoch_floor=0)

    yield run


@contextmanager
def state_rows() -> Iterator[Callable[[bytes], object]]:
    """State files whose rows have the right checksums, and what nobody has written in them."""
    with tempfile.TemporaryDirectory() as folder:
        path = _new_state(folder)
        whole = path.read_bytes()

        def run(data: bytes) -> None:
            source = Source(data)
            path.write_bytes(whole)
            connection = sqlite3.connect(path, isolation_level=None)
            for _ in range(source.below(4) + 1):
                kind, name = source.choice(_KINDS), source.choice(_NAMES)
                document = json.dumps(json_document(source)) if source.below(8) else source.text()
                row = (kind, name, document, checksum_of(kind, name, document))
                connection.execute("INSERT OR REPLACE INTO resources VALUES (?, ?, ?, ?)", row)
            connection.close()
            _open(path)

        yield run


@contextmanager
def state_bytes() -> Iterator[Callable[[bytes], object]]:
    """State files of which some bytes are others."""
    with tempfile.TemporaryDirectory() as folder:
        path = _new_state(folder)
        whole = path.read_bytes()

        def run(data: bytes) -> None:
            source, content = Source(data), bytearray(whole)
            for _ in range(1 + source.below(6)):
                at = int.from_bytes(source.take(2), "big") % len(content)
                part = source.payload() or b"\xff"
                content[at : at + len(part)] = part
            path.write_bytes(content[: len(whole) if source.below(4) else source.below(256) * 64])
            _open(path)

        yield run


def _new_state(folder: str) -> Path:
    path = Path(folder, "state.sqlite")
    file = StateFile.open(path, lambda: ("g" * 32, Desired()))
    file.close()
    for each in path.parent.iterdir():
        if each != path and each.suffix != ".lock":
            each.unlink()
    return path


def _open(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with suppress(StateRefused):
        StateFile.open(path, None).close()


def json_document(source: Source, depth: int = _MAX_DEPTH) -> Any:
    """A JSON document, with keys that mean something."""
    match source.below(8 if depth else 5):
        case 0:
            return source.integer()
        case 1:
            return source.text()
        case 2:
            return source.choice((None, True, False, 0, 1, -1, 1.5, "", "b", "e", [], {}))
        case 3:
            return [source.below(3) for _ in range(source.choice((0, 1, 2, 255)))]
        case 4:
            return source.choice(_NAMES)
        case 5:
            return [json_document(source, depth - 1) for _ in range(source.below(4))]
        case _:
            keys = (*_KEYS, *_NAMES)
            return {source.choice(keys): json_document(source, depth - 1) for _ in range(source.below(6))}


TARGETS: Final = {
    "documents-specs": specs,
    "documents-settings": settings,
    "documents-exports": exports,
    "documents-state-rows": state_rows,
    "documents-state-bytes": state_bytes,
}
