"""When a standby concludes that the controller that leads has not noted an election of etcd."""

from __future__ import annotations

import pytest

from controller_service.store.etcd.layout import election_in, leader_in, note_of
from controller_service.store.etcd.lease import NOTED_WITHIN_S, Elections


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
