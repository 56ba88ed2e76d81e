"""What another program has written under the keys of a mesh in etcd, and values of the largest sizes."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller_service.core.desired.state import Desired
from controller_service.store.etcd.client import PAGE_KEYS
from controller_service.store.etcd.layout import Layout, RowChange, RowName, address_in, journal_chunks, leader_in
from controller_service.store.etcd.operations import Kv
from controller_service.store.etcd.store import EtcdCandidacy
from controller_service.store.forms import BadDocument
from controller_service.store.protocol import UNKNOWN_LEADER
from controller_service.store.rows import DamagedRows, checksum_of
from slotmesh.config.etcd import PLAIN_ACCESS
from slotmesh.ids import new_id
from slotmesh.streams.limits import MAX_MESSAGE_BYTES
from tests.support.etcd import EtcdCluster, etcd_cluster, needs_etcd

HEAD = {"format": 1, "generation": "a" * 32, "revision": 3, "configured_at": 0, "epoch_floor": 0, "term": 1}
DEEP = b"[" * 100_000


def head(**changed: Any) -> bytes:
    return json.dumps({**HEAD, **changed}).encode()


def row(kind: str, name: str, text: str) -> bytes:
    return b"1 %d\n%b" % (checksum_of(kind, name, text), text.encode())


UNREADABLE: dict[str, dict[bytes, bytes]] = {
    "revision": {b"head": head(revision="x")},
    "no revision": {b"head": head(revision=None)},
    "broken revision": {b"head": head(revision=3.5)},
    "term": {b"head": head(term="x")},
    "generation": {b"head": head(generation=5)},
    "chunks": {b"head": head(journal="j", chunks="x")},
    "number of chunks": {b"head": head(journal="j", chunks=10**18)},
    "deep head": {b"head": DEEP},
    "number of parts": {b"head": head(), b"rows/backend/a": b"%d 5\n{}" % 10**15},
    "digits": {b"head": head(), b"rows/backend/a": b"1 %b\n{}" % (b"9" * 5000)},
    "key": {b"head": head(), b"rows/backend/\xff": b"1 5\n{}"},
    "journal": {b"head": head(journal="j", chunks=1), b"journal/j/000000": b'[[["a"],"b","c"]]'},
    "text in a journal": {b"head": head(journal="j", chunks=1), b"journal/j/000000": b'[["backend","b","{"]]'},
    "text in a row": {b"head": head(), b"rows/backend/a": row("backend", "a", "{")},
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_another_program_wrote_is_damage(case: str) -> None:
    keys = Layout("/slotmesh/m/")
    found = [Kv(keys.prefix + key, value, 1, 1, 0) for key, value in UNREADABLE[case].items()]
    with pytest.raises((DamagedRows, BadDocument)):
        keys.snapshot(found)


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[]", DEEP, b'{"address": 5}', b'{"address": "a\\nb:1", "process": ""}']
)
def test_a_note_that_another_program_wrote_names_no_controller(value: bytes) -> None:
    assert leader_in(value) == UNKNOWN_LEADER
    assert not address_in(value)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    async with etcd_cluster(tmp_path) as running:
        yield running


@needs_etcd
@pytest.mark.asyncio
async def test_a_leader_reports_a_head_that_another_program_wrote(cluster: EtcdCluster) -> None:
    store = await EtcdCandidacy(cluster.place(), PLAIN_ACCESS, lambda: (new_id(), Desired())).try_to_lead()
    assert store is not None
    written = {"key": cluster.place().prefix + "head", "value": json.dumps({**HEAD, "revision": "x"})}
    cluster.members[0].post("kv/put", {name: b64encode(it.encode()).decode() for name, it in written.items()})
    standing = await anext(store.standing())
    assert "the head cannot be read" in standing.problem
    await store.close()


def test_a_page_of_a_journal_is_no_larger_than_a_message() -> None:
    chunks = journal_chunks([RowChange(RowName("backend", "b"), "x" * 3_000_000)])
    assert len(chunks) > 1
    assert PAGE_KEYS * (max(map(len, chunks)) + 200) < MAX_MESSAGE_BYTES
