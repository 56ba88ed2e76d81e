"""When a standby concludes that the controller that leads has not noted an election of etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from controller_service.core.desired.state import Desired
from controller_service.store.etcd import lease, store
from controller_service.store.etcd.client import EtcdFailed
from controller_service.store.etcd.layout import election_in, leader_in, note_of
from controller_service.store.etcd.lease import NOTED_WITHIN_S, Elections
from controller_service.store.etcd.operations import Delete, Get, Kv, TxnResult
from controller_service.store.etcd.store import EtcdCandidacy
from slotmesh.config.etcd import EtcdAccess, EtcdPlace


def test_a_leader_has_some_time_to_note_each_election() -> None:
    elections = Elections()
    assert not elections.is_overdue(4, 5, 100.0)
    assert not elections.is_overdue(4, 5, 100.0 + NOTED_WITHIN_S - 0.001)
    assert not elections.is_overdue(4, 6, 100.0 + NOTED_WITHIN_S), "another election: it begins anew"
    assert not elections.is_overdue(4, 6, 100.0 + 2 * NOTED_WITHIN_S - 0.001)
    assert elections.is_overdue(4, 6, 100.0 + 2 * NOTED_WITHIN_S)


@pytest.mark.parametrize("noted", [5, 6, 0, -1], ids=["noted", "a later one", "an older version", "no number"])
def test_nothing_is_overdue_otherwise(noted: int) -> None:
    elections = Elections()
    elections.is_overdue(4, 5, 100.0)
    assert not elections.is_overdue(noted, 5, 200.0)
    assert not elections.is_overdue(4, 5, 200.0), "what was counted before counts no more"


def test_a_note_has_an_election_and_older_notes_have_none() -> None:
    note = note_of("127.0.0.1:7070", "p", 7)
    assert election_in(note) == 7
    assert leader_in(note) == leader_in(note_of("127.0.0.1:7070", "p"))
    for other in (note_of("127.0.0.1:7070", "p"), b"", b"[]", b'{"election": "x"}', b"{"):
        assert election_in(other) == 0


class Ended(Exception):
    """The standby has looked a second time since etcd is back."""


class Etcd:
    """It has elected, and is then away for longer than a leading controller has to note that."""

    election = 5

    def __init__(self, *_: object) -> None:
        self._looks = 0
        self._back_at = 0.0
        self._looks_since = 0

    async def txn(self, _conditions: object, then: Sequence[object], **_: object) -> TxnResult:
        assert not any(isinstance(it, Delete) for it in then), "the leading controller could not reach etcd either"
        if not any(isinstance(it, Get) for it in then):
            return TxnResult(True, 1, [])
        now = asyncio.get_running_loop().time()
        self._looks += 1
        if self._looks == 2:
            self._back_at = now + 1.5 * lease.NOTED_WITHIN_S
        if now < self._back_at:
            raise EtcdFailed("no leader", is_unwritten=True, is_refused=False)
        self._looks_since += self._looks > 2
        if self._looks_since > 1:
            raise Ended
        return TxnResult(True, 1, [[Kv(b"leader", note_of("127.0.0.1:1", "p", 4), 1, 1, 1)]])

    async def watch(self, *_: object) -> AsyncGenerator[Any, None]:
        await asyncio.sleep(0)
        return
        yield

    async def grant(self, _: int) -> int:
        return 7

    async def revoke(self, _: int) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.asyncio
async def test_time_in_which_etcd_is_away_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "NOTED_WITHIN_S", 0.2)
    monkeypatch.setattr(store, "TRY_S", 0.01)
    monkeypatch.setattr(store, "EtcdClient", Etcd)
    candidacy = EtcdCandidacy(EtcdPlace(("127.0.0.1:1",), "m"), EtcdAccess(), lambda: ("g", Desired()))
    with pytest.raises(Ended):
        await candidacy.wait_to_lead("127.0.0.1:2")
