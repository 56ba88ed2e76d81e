"""Mutants of what operators decide about replicas, states and code while not all members are known."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CONTROLLER: Final = "controller_service"
_FORGETTING: Final = "tests/unit/controller/test_forgetting.py"
_LOST: Final = "tests/contract/cli/test_lost_replies.py"
_COLLECTING: Final = "tests/unit/controller/code/test_collecting.py"

STORE_OWNERS: Final = (
    mutant(
        "a replica is forgotten before it had the time to attach to a new controller",
        CONTROLLER,
        '        if left_s > 0.0:\n            return f"this controller is new',
        '        if left_s > 1e9:\n            return f"this controller is new',
        _FORGETTING,
    ),
    mutant(
        "a replica is forgotten while a router has not reported its links",
        CONTROLLER,
        "        if router.reported_at is None:\n            return f",
        "        if router.reported_at == -1.0:\n            return f",
        _FORGETTING,
    ),
    mutant(
        "a generation begins with a state that is not the newest",
        CONTROLLER,
        "        if expected_revision != self.desired.revision:\n",
        "        if expected_revision > self.desired.revision:\n",
        "tests/contract/controller/test_store.py",
    ),
    mutant(
        "a state is adopted without the change that came between",
        CONTROLLER,
        "            except Conflict:\n                continue\n            except StoreWriteFailed as failed:\n"
        "                raise to_exception(not_stored(failed)) from failed\n        raise",
        "            except StoreWriteFailed as failed:\n"
        "                raise to_exception(not_stored(failed)) from failed\n        raise",
        "tests/contract/controller/test_older_state.py",
    ),
    mutant(
        "each look for a leader keeps its channel",
        "slotmesh/cli",
        "        await before.aclose()",
        "        self._opened.push_async_callback(before.aclose)",
        _LOST,
    ),
    mutant(
        "what a file has changed is not listed where its reply was lost",
        "slotmesh/cli",
        "applied.revision\n        print_change(planned, ",
        "applied.revision\n        print_change(applied, ",
        _LOST,
    ),
    mutant(
        "an order about a replica is carried out before it is stored",
        CONTROLLER,
        "        return Plan(change=ChangeSet(put_orders=tuple(orders)))",
        "        self._carry_out(orders := tuple(orders))\n        return Plan(change=ChangeSet(put_orders=orders))",
        "tests/contract/controller/test_forgetting.py",
    ),
    mutant(
        "snapshots go before members had the time to attach",
        CONTROLLER,
        "await asyncio.sleep(COLLECT_EVERY_S + self._links.lease_s)",
        "await asyncio.sleep(COLLECT_EVERY_S)",
        _COLLECTING,
    ),
    mutant(
        "snapshots go though a member knows a newer state",
        CONTROLLER,
        "            if not self._newer:\n                needed",
        "            if True:\n                needed",
        _COLLECTING,
    ),
)
