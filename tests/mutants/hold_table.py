"""Mutants of the hold: a controller that starts with an older state file, and what members and commands make of it."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_CONTROLLER: Final = "controller_service"
_REPLICA: Final = "replica_service"
_CLI: Final = "slotmesh"
_HOLD: Final = "tests/contract/controller/test_hold.py"
_ORPHANS: Final = "tests/contract/replica/test_orphans.py"
_EVENTS: Final = "tests/contract/controller/test_kept_events.py"
_FINDINGS: Final = "tests/unit/cli/checking/test_findings.py"

HOLD: Final = (
    mutant(
        "a replica whose controller is on hold counts as an orphan",
        _REPLICA,
        "            self._absence.end(is_attached=True)  # only a controller that leads sends frames\n",
        "",
        _ORPHANS,
    ),
    mutant(
        "a controller decides before routers have reported",
        _CONTROLLER,
        "        if heard_within_s <= 0.0 or not store.read().roster.members:\n",
        "        if True:\n",
        _HOLD,
    ),
    mutant(
        "one router that has reported its table is enough",
        _CONTROLLER,
        "return bool(self._named) and self._named <= self._attached",
        "return bool(self._named)",
        _HOLD,
    ),
    mutant(
        "a start without routers waits for ever",
        _CONTROLLER,
        "            async with asyncio.timeout(max(0.0, left_s)):\n",
        "            async with asyncio.timeout(None):\n",
        _HOLD,
    ),
    mutant(
        "replicas are not configured once routers have reported",
        _CONTROLLER,
        "        newer.listen(self._introduce_all)\n",
        "",
        _HOLD,
    ),
    mutant(
        "what an older state file has started goes on",
        _CONTROLLER,
        "        links.newer.listen(self._withdraw)\n",
        "",
        _HOLD,
    ),
    mutant(
        "a drain is accepted during a hold",
        _CONTROLLER,
        "            raise to_exception(Failure(reason=Reason.BAD_REQUEST, message=text))\n\n\ndef _not_found",
        "            pass\n\n\ndef _not_found",
        _HOLD,
    ),
    mutant(
        "a command does not state that its change takes no effect",
        _CLI,
        "                say(STORED_ON_HOLD, err=True)\n",
        "                pass\n",
        _HOLD,
    ),
    mutant(
        "a command that a standby has refused goes on to the leader of another mesh",
        _CLI,
        "if not (role.leads and standby and standby in role.standby_addresses):",
        "if not role.leads:",
        "tests/contract/cli/test_followed_leaders.py",
    ),
    mutant(
        "check has routers started again during a hold",
        _CLI,
        "        if is_on_hold:\n            fix = ",
        "        if False:\n            fix = ",
        _FINDINGS,
    ),
    mutant(
        "events are stored before the earlier ones were read",
        _CONTROLLER,
        "            if not self._is_loaded:\n                raise EventsUnwritten",
        "            if False:\n                raise EventsUnwritten",
        _EVENTS,
    ),
    mutant(
        "events that were read late are not shown",
        _CONTROLLER,
        "kept.put_before(await self._store.load(self._bounds))",
        "await self._store.load(self._bounds)",
        _EVENTS,
    ),
)
