"""Mutants of broadcasts, and of the ranks of replicas."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

ROUTER: Final = "router_service/core/features"
CORE: Final = "tests/unit/router/features/test_broadcasts.py"
CONTROLLER: Final = "controller_service/core/observed"
RANKS: Final = "tests/properties/test_controller_ranks.py"

BROADCASTS: Final = (
    mutant(
        "a lost call of a broadcast is executed again, elsewhere",
        ROUTER,
        "caller, options = event.caller, replace(event.options, idempotent=False)",
        "caller, options = event.caller, replace(event.options)",
        CORE,
    ),
    mutant(
        "a call that its replica has not taken goes to another one",
        ROUTER,
        "        if not isinstance(run, PinnedRun):\n            return False\n        broadcast",
        "        if isinstance(run, PinnedRun):\n            return False\n        broadcast",
        CORE,
    ),
    mutant(
        "calls are sent to a replica without room",
        ROUTER,
        "if broadcast.has_room and _room(target) > 0:",
        "if broadcast.has_room and target.linked:",
        CORE,
    ),
    mutant(
        "a broadcast has all its calls under way, however large results are",
        ROUTER,
        "min(MAX_UNDER_WAY, MAX_RESULT_BYTES // self.largest)",
        "MAX_UNDER_WAY",
        CORE,
    ),
    mutant(
        "a call for a replica that is removed waits until its deadline",
        ROUTER,
        "        for replica in list(self._waiting):\n            self._serve(replica, step)",
        "        pass",
        CORE,
    ),
    mutant(
        "calls of a broadcast start although its caller has left",
        ROUTER,
        "            for run in list(broadcast.waiting):\n                self._forget(broadcast, run, step)",
        "            pass",
        CORE,
    ),
    mutant(
        "a broadcast of which a call failed is counted as completed",
        ROUTER,
        "            broadcast.has_failed = True\n",
        "",
        CORE,
    ),
    mutant(
        "a draining replica is called by a broadcast",
        ROUTER,
        "            if not each.draining\n        }",
        "        }",
        CORE,
    ),
    mutant(
        "of two replicas with one rank, the younger one keeps it",
        CONTROLLER,
        "_began(it) < _began(replica)",
        "_began(it) > _began(replica)",
        RANKS,
    ),
    mutant(
        "the rank of a replica that has ended is not free",
        CONTROLLER,
        "if not (it.gone or it is before)]",
        "if it is not before]",
        RANKS,
    ),
    mutant(
        "a rank that a replica reports is forgotten",
        CONTROLLER,
        "(record.has_attached and record.rank is not None) else hello.rank",
        "(record.has_attached and record.rank is not None) else None",
        RANKS,
    ),
)
