"""Whether the devices suffice for what a change wants, and what that means for its rollouts.

Invariants: a change that this machine can never carry out is refused when it is applied, with the numbers; what only
waits, or replaces replicas in another order, is a warning.
Owner: the configurator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from controller_service.core.desired.planning import Plan
from controller_service.core.desired.state import Desired
from controller_service.core.devices import DeviceLedger, DeviceRules, rollout_room
from controller_service.core.observed.replica_groups import group_replicas
from controller_service.core.observed.state import Observed, wanted_replicas
from controller_service.core.reconciling.rollout_bounds import max_surge_of, rollout_bounds
from slotmesh.spec.model import Backend, InvalidSpec


class DeviceChecks:
    """Checks plans against the devices of this controller."""

    def __init__(self, rules: DeviceRules, observed: Callable[[], Observed], now: Callable[[], float]) -> None:
        self._rules = rules
        self._observed = observed
        self._now = now
        self.ledger: Callable[[], DeviceLedger | None] = lambda: None
        """What the launcher hands out; None: nothing."""

    def led_by(self, ledger: Callable[[], DeviceLedger | None]) -> None:
        """Follows the ledger of the launcher."""
        self.ledger = ledger
        if ledger() is None:
            self._rules = replace(self._rules, pools=None)

    def checked(self, desired: Desired, plan: Plan) -> Plan:
        """The plan, with warnings about rollouts. Raises InvalidSpec."""
        changed = {it.name: it for it in plan.change.put_backends}
        if not any(it.devices for it in changed.values()):
            return plan
        after = {name: it for name, it in desired.backends.items() if name not in plan.change.delete_backends} | changed
        if problems := [*self._rules.problems(desired.backends, after)]:
            raise InvalidSpec(problems)
        warnings = chain.from_iterable(self._warnings(changed[name]) for name in plan.rolling if name in changed)
        return replace(plan, warnings=(*plan.warnings, *warnings))

    def _warnings(self, backend: Backend) -> Iterator[str]:
        """How the replicas of a backend are replaced, if that differs from what its settings say."""
        if (ledger := self.ledger()) is None or not backend.devices:
            return
        observed, now = self._observed(), self._now()
        groups = group_replicas(observed.replicas(backend.name), None, now)
        wanted, staying = wanted_replicas(backend, observed), len(groups.outdated)
        room = rollout_room(ledger, backend, ending=observed.ending())
        surge, unavailable = rollout_bounds(backend, wanted, staying, room)
        if not staying or not wanted or surge or not max_surge_of(backend, wanted):
            return
        lack = ledger.without(observed.ending()).lack(backend.devices)
        yield (
            f"backend/{backend.name}: no device is spare ({lack}): its rollout stops"
            f" {'a replica' if unavailable == 1 else f'up to {unavailable} replicas'} before it starts"
            f" {'one' if unavailable == 1 else 'others'}"
        )


def no_checks() -> DeviceChecks:
    """Of a configurator whose controller gives no devices to replicas."""
    return DeviceChecks(DeviceRules(), Observed, lambda: 0.0)
