"""Mutants of balancers of users' own, and of zones."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_PLUGGED: Final = "tests/unit/router/balancers/test_plugged_balancers.py"
_NEAR: Final = "tests/unit/router/balancers/test_near_first.py"

BALANCERS: Final = (
    mutant(
        "a plug-in may pick a replica that it was not shown",
        "router_service/core",
        "if at < len(self._ids) and self._ids[at] == replica_id else None",
        "if at < len(self._ids) else None",
        _PLUGGED,
    ),
    mutant(
        "a pick is for more calls than there is room for",
        "router_service/core",
        "return replica, min(most, count, replica.free) if count > 1 else 1",
        "return replica, min(most, count) if count > 1 else 1",
        _PLUGGED,
    ),
    mutant(
        "a plug-in that failed once in a while is set aside",
        "router_service/core",
        '        """A pick was used, in time."""\n        self._faults = 0',
        '        """A pick was used, in time."""\n        self._faults += 0',
        _PLUGGED,
    ),
    mutant(
        "a plug-in that hangs is called again at once",
        "router_service/core",
        "if self._faults < FAULTS_IN_A_ROW and self._debt_s <= LATE_AT_ONCE_S:",
        "if self._faults < FAULTS_IN_A_ROW:",
        _PLUGGED,
    ),
    mutant(
        "each pause of a plug-in is as long as the first",
        "router_service/core",
        "min(LONGEST_PAUSE_S, 2 * self._pause_s) if is_soon else PAUSE_S",
        "PAUSE_S",
        _PLUGGED,
    ),
    mutant(
        "a replica that became full stays a candidate",
        "router_service/core",
        "                del ids[at], self._open[at], self._shown[at]",
        "                pass",
        _PLUGGED,
    ),
    mutant(
        "changes of replicas pile up while nothing is picked",
        "router_service/core",
        "if len(self._changed) > MAX_CHANGED:",
        "if False:",
        _PLUGGED,
    ),
    mutant(
        "a plug-in sees all metadata of calls",
        "router_service/convert",
        "for name in self._names if name in stated",
        "for name in stated",
        "tests/contract/router/test_plugged_balancers.py",
    ),
    mutant(
        "the log has the text of what a plug-in raised",
        "router_service/shell",
        'return f"{type_name(error)} at',
        'return f"{error!r} at',
        "tests/contract/router/test_plugged_balancers.py",
    ),
    mutant(
        "replicas without a zone are near to a router without one",
        "router_service/core",
        'is_near = zone != "" and zone == self.backend.zone',
        "is_near = zone == self.backend.zone",
        _NEAR,
    ),
    mutant(
        "quick calls join far replicas while near ones have room",
        "router_service/core",
        "self.filling = replica if replica is None or replica.is_near or not self.near else None",
        "self.filling = replica",
        _NEAR,
    ),
    mutant(
        "a zone that is known later changes nothing",
        "router_service/core",
        "        self.zone, self.is_near = zone, is_near",
        "        self.zone = zone",
        _NEAR,
    ),
)
