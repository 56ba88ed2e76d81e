"""Mutants of the state in etcd: what fences, what settles a lost answer, what makes a large change one change."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

STORE: Final = "controller_service/store/etcd"
STATE: Final = "tests/contract/controller/test_etcd_state.py"

ETCD: Final = (
    mutant(
        "a controller writes to etcd while another one holds the key of the leader",
        STORE,
        "return [Is(leader, lease=self._lease.identity), Is(leader, created=self._fence), head]",
        "return [head]",
        STATE,
    ),
    mutant(
        "a write to etcd that arrives late is carried out",
        STORE,
        "return [Is(leader, lease=self._lease.identity), Is(leader, created=self._fence), head]",
        "return [Is(leader, lease=self._lease.identity), Is(leader, created=self._fence)]",
        STATE,
    ),
    mutant(
        "a change of unknown outcome is not found out before the next one",
        STORE,
        "if self._is_doubtful or is_tried:",
        "if is_tried:",
        STATE,
    ),
    mutant(
        "a reader overlooks a change that is in the journal",
        STORE,
        "journal = _journal_of(self._chunks_of(stored, by_key))",
        'journal = _journal_of(b"[]")',
        STATE,
    ),
    mutant(
        "a controller that leads, and has noted an election of etcd, loses its key",
        STORE,
        "if not 0 < noted < newest:",
        "if not 0 < noted:",
        "tests/unit/controller/test_elections.py",
    ),
    mutant(
        "a controller that waits for a member of etcd that hangs seems silent",
        STORE,
        "                await self._state.note_election()\n",
        "                pass\n",
        "tests/contract/controller/test_etcd_leadership.py",
    ),
    mutant(
        "a controller that is cut off from etcd leads beside its successor",
        "controller_service/shell",
        "return is_later and info.incarnation == self._board.generation",
        "return False",
        "tests/contract/controller/test_cut_off_leader.py",
    ),
    mutant(
        "a controller ends when one leads that has stood by for another mesh",
        "controller_service/shell",
        "return is_later and info.incarnation == self._board.generation",
        "return is_later",
        "tests/contract/controller/test_cut_off_leader.py",
    ),
    mutant(
        "a controller loses its key since no controller has reached etcd",
        STORE,
        "elections = Elections()  # the leading",
        "pass  # the leading",
        "tests/unit/controller/test_elections.py",
    ),
    mutant(
        "a standby waits for the end of a lease that an election has prolonged",
        STORE,
        "return now >= self._since + NOTED_WITHIN_S",
        "return False",
        "tests/unit/controller/test_elections.py",
    ),
)
