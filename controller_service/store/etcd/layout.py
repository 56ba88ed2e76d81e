"""Keys and values of a mesh's state in etcd. Pure.

All keys begin with `/slotmesh/MESH/`:
  head               generation, revision, term and the other numbers that a state has once, as JSON
  rows/KIND/NAME     a row as in a state file: the number of its parts and its checksum, a line end, its JSON document
  rows/KIND/NAME#N   the later parts of a document that does not fit into one value
  journal/ID/N       a change that does not fit into one transaction
  leader             address and process of the controller that leads, and the newest election of etcd that it has seen;
                     bound to its lease
  standbys/ID        the same of each controller that waits

Invariants: a transaction has at most `MAX_OPERATIONS` and `MAX_BYTES`, which etcd accepts by default with room to spare
(128 operations, 1.5 MiB). A larger change is written to the journal, then the head names that journal, then its rows
are written. A head that names a journal has the state of the rows with the journal's applied: a reader sees the state
before the change, or after it, at each moment.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from controller_service.core.desired.state import Desired
from controller_service.store.etcd.operations import Delete, Kv, Put, Write, end_of
from controller_service.store.forms import BadDocument
from controller_service.store.protocol import UNKNOWN_LEADER, Leader
from controller_service.store.rows import DamagedRows, Head, Row, changed_rows, checksum_of, read_state
from slotmesh.units import join_host_port, parse_host_port

FORMAT: Final = 1
"""Of keys and values. Raised when an older slotmesh could misread a newer one."""
PART_BYTES: Final = 256 * 1024
MAX_OPERATIONS: Final = 100
MAX_BYTES: Final = 1024 * 1024
_OPERATION_BYTES: Final = 64
"""What an operation takes beside its key and its value, at most."""


class RowName(NamedTuple):
    """Identifies a row."""

    kind: str
    name: str


class RowChange(NamedTuple):
    """A row that is put; or deleted, if there is no text."""

    row: RowName
    text: str | None


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The value of `head`."""

    head: Head
    journal: str = ""
    """The id of the journal that is applied to the rows; empty if the rows are complete."""
    chunks: int = 0
    """Of the journal."""

    def encoded(self) -> bytes:
        journal = {"journal": self.journal, "chunks": self.chunks} if self.journal else {}
        return json.dumps({"format": FORMAT, **asdict(self.head), **journal}).encode()


_HEAD_TYPES: Final = {
    **dict.fromkeys(("generation", "journal"), str),
    **dict.fromkeys(("chunks", "revision", "configured_at", "epoch_floor", "term"), int),
}


def read_head(value: bytes) -> StoredHead:
    """Raises DamagedRows, and BadDocument if another version wrote it."""
    try:
        document = json.loads(value)
        if document.pop("format") != FORMAT:
            raise BadDocument("was written by another version of slotmesh")
        stored = StoredHead(
            journal=document.pop("journal", ""), chunks=document.pop("chunks", 0), head=Head(**document)
        )
        for field, kind in _HEAD_TYPES.items():
            if type(getattr(stored if field in {"journal", "chunks"} else stored.head, field)) is not kind:
                raise TypeError(field)
        return stored
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, BadDocument):
            raise
        raise DamagedRows("the head cannot be read") from error


class KeySnapshot(NamedTuple):
    """What the keys of a mesh have at one revision of etcd."""

    head: Kv | None
    stored: StoredHead | None
    """The head. None: there is no state."""
    state: Desired
    split: frozenset[RowName]
    """Rows whose documents have several parts."""
    journal: tuple[RowChange, ...]
    """Changes that are part of the state, and may not be in the rows yet."""


class Layout:
    """The keys of one mesh."""

    def __init__(self, prefix: str) -> None:
        self.prefix: Final = prefix.encode()
        self.head: Final = self.prefix + b"head"
        self.leader: Final = self.prefix + b"leader"
        self.standbys: Final = self.prefix + b"standbys/"
        self.journals: Final = self.prefix + b"journal/"
        self._rows: Final = self.prefix + b"rows/"

    def row(self, row: RowName) -> bytes:
        return self._rows + f"{row.kind}/{quote(row.name, safe='/')}".encode()

    def chunk(self, journal: str, number: int) -> bytes:
        return self.journals + f"{journal}/{number:06}".encode()

    def writes(self, change: RowChange, split: Collection[RowName]) -> Iterator[Write]:
        """What stores a change of a row. `split`: rows that have several parts before it."""
        key = self.row(change.row)
        if change.text is None:
            yield Delete(key)
            parts = 0
        else:
            content = change.text.encode()
            parts = max(1, -(-len(content) // PART_BYTES))
            checksum = checksum_of(*change.row, change.text)
            yield Put(key, b"%d %d\n%b" % (parts, checksum, content[:PART_BYTES]))
            for number in range(1, parts):
                yield Put(_part(key, number), content[number * PART_BYTES : (number + 1) * PART_BYTES])
        if change.row in split:
            yield Delete(_part(key, max(1, parts)), end_of(key + b"#"))

    def split_after(self, changes: Iterable[RowChange], split: frozenset[RowName]) -> frozenset[RowName]:
        """Rows that have several parts once these changes are written."""
        parts = {it.row: sum(isinstance(each, Put) for each in self.writes(it, ())) for it in changes}
        return split - parts.keys() | {row for row, count in parts.items() if count > 1}

    def snapshot(self, kvs: Iterable[Kv]) -> KeySnapshot:
        """Raises DamagedRows, and BadDocument for what another version wrote."""
        try:
            return self._snapshot(kvs)
        except BadDocument:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:  # another program wrote it
            raise DamagedRows(f"a value cannot be read: {error}") from error

    def _snapshot(self, kvs: Iterable[Kv]) -> KeySnapshot:
        by_key = {it.key: it for it in kvs}
        head = by_key.get(self.head)
        if head is None:
            if any(it.startswith(self._rows) for it in by_key):
                raise DamagedRows("there are rows, and no head")
            return KeySnapshot(None, None, Desired(), frozenset(), ())
        stored = read_head(head.value)
        journal = _journal_of(self._chunks_of(stored, by_key))
        replaced = {it.row for it in journal}
        named = {self._row_of(it): it for it in by_key if it.startswith(self._rows) and b"#" not in it}
        counts = {row: _parts_in(by_key[key].value) for row, key in named.items()}
        rows = [_row(row, key, by_key) for row, key in named.items() if row not in replaced]
        rows += [(*it.row, it.text, checksum_of(*it.row, it.text)) for it in journal if it.text is not None]
        # A part that a batch of a journal has left without its first one counts as well.
        torn = {self._row_of(it.partition(b"#")[0]) for it in by_key if it.startswith(self._rows) and b"#" in it}
        split = frozenset({row for row, count in counts.items() if count > 1} | torn)
        return KeySnapshot(head, stored, read_state(stored.head, rows), split, journal)

    def _row_of(self, key: bytes) -> RowName:
        kind, _, name = key.removeprefix(self._rows).decode().partition("/")
        return RowName(kind, unquote(name))

    def _chunks_of(self, stored: StoredHead, by_key: dict[bytes, Kv]) -> bytes:
        return _joined((self.chunk(stored.journal, number) for number in range(stored.chunks)), by_key)


def changes_between(before: Desired, after: Desired) -> tuple[RowChange, ...]:
    """Rows that differ."""
    return tuple(
        RowChange(RowName(kind, name), None if document is None else json.dumps(document, separators=(",", ":")))
        for kind, name, document in changed_rows(before, after)
    )


def journal_chunks(changes: Iterable[RowChange]) -> list[bytes]:
    """The content of a journal, in values of the size of a part: a page of keys is no larger than a response may be."""
    content = json.dumps([[*it.row, it.text] for it in changes]).encode()
    return [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]


def _journal_of(content: bytes) -> tuple[RowChange, ...]:
    try:
        return tuple(RowChange(RowName(kind, name), text) for kind, name, text in json.loads(content or b"[]"))
    except (ValueError, TypeError) as error:
        raise DamagedRows("the journal cannot be read") from error


def batches(writes: Iterable[Write]) -> Iterator[list[Write]]:
    """In as few transactions as etcd accepts."""
    batch: list[Write] = []
    size = 0
    for write in writes:
        more = _size(write)
        if batch and (len(batch) == MAX_OPERATIONS or size + more > MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(write)
        size += more
    if batch:
        yield batch


def fit_together(writes: Sequence[Write]) -> bool:
    """Whether one transaction takes all of them, and the head."""
    return len(writes) < MAX_OPERATIONS and sum(map(_size, writes)) <= MAX_BYTES


def _size(write: Write) -> int:
    more = write.value if isinstance(write, Put) else write.end
    return len(write.key) + len(more) + _OPERATION_BYTES


def _part(key: bytes, number: int) -> bytes:
    return key + b"#%06d" % number


def _parts_in(value: bytes) -> int:
    count = value[:16].partition(b" ")[0]
    if not count.isdigit():
        raise DamagedRows("a row cannot be read")
    return int(count)


def _row(row: RowName, key: bytes, by_key: dict[bytes, Kv]) -> Row:
    first, _, content = by_key[key].value.partition(b"\n")
    count, _, checksum = first.partition(b" ")
    if not checksum.isdigit():
        raise DamagedRows(f"{row.kind} {row.name} cannot be read")
    rest = _joined((_part(key, number) for number in range(1, int(count))), by_key)
    text = (content + rest).decode("utf-8", "replace")
    return row.kind, row.name, text, int(checksum)


def _joined(keys: Iterable[bytes], by_key: dict[bytes, Kv]) -> bytes:
    """Stops at the first key that is not there, whatever number of them a value names."""
    found = bytearray()
    for key in keys:
        if key not in by_key:
            raise DamagedRows(f"{key.decode()} is missing")
        found += by_key[key].value
    return bytes(found)


# -- notes of controllers ----------------------------------------------------------------------------------------------


def note_of(address: str, process: str, election: int = 0) -> bytes:
    """What `leader` and `standbys/ID` have. `process`: for people, as `host (pid 7)`."""
    return json.dumps({"address": address, "process": process, **({"election": election} if election else {})}).encode()


def election_in(value: bytes) -> int:
    """The newest election of etcd that the writer of a note has noted; 0: it notes none."""
    try:
        election = json.loads(value).get("election")
    except (ValueError, AttributeError, RecursionError):
        return 0
    return election if isinstance(election, int) else 0


def leader_in(value: bytes) -> Leader:
    """The controller that a note is of."""
    address, process = _read_note(value)
    return Leader(address, f"the controller{address and f' at {address}'} ({process})") if process else UNKNOWN_LEADER


def address_in(value: bytes) -> str:
    return _read_note(value)[0]


def _read_note(value: bytes) -> tuple[str, str]:
    try:
        note: Any = json.loads(value)
        address = str(note["address"])
        return address and join_host_port(*parse_host_port(address)), str(note["process"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return "", ""
