"""Devices of this machine: which of them the next replica gets, whether all backends fit, and who holds what.

Purpose: a `DeviceLedger` is made of the pools and of what live instances hold, each time that it is needed, and is
stored nowhere: a device is held for exactly as long as the launcher has an instance, or a stranger, with it.
Invariants: a whole device has one holder; the shares of a device sum to at most 1, in thousandths; shares fill devices
that are in use before they take a free one, and leave those that others want as a whole. A holder of a device that is
in no pool any more counts for nothing.
Owner: pure values, for launchers, `shell.changes.configurator` and the reconcile loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from slotmesh.spec.devices import (
    WHOLE,
    HeldDevice,
    shown_amount,
    thousandths_of,
)
from slotmesh.spec.model import Backend, SpecViolation
from slotmesh.spec.rules import show

Pools: TypeAlias = Mapping[str, tuple[str, ...]]
"""Names of devices, by pool."""
Amounts: TypeAlias = Mapping[str, float]
"""What one replica wants, by pool."""

MOST_COUNTED: Final = 64
"""Replicas that a rollout of a backend with devices may add at a time."""
NAMED: Final = 8
"""Holders and backends that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLedger:
    """The pools, and what replicas hold of them."""

    pools: Pools
    holders: Mapping[str, tuple[HeldDevice, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By replica."""
    share_limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The number of devices that shares may use, by pool. Not in it: all."""

    def choose(self, wanted: Amounts) -> tuple[HeldDevice, ...] | None:
        """What the next replica gets, pool by pool in their order; None if not all of it is free."""
        return self._use().take(wanted)

    def room_for(self, wanted: Amounts, most: int) -> int:
        """How many more replicas find what they want, `most` at most."""
        use = self._use()
        return next((count for count in range(most) if use.take(wanted) is None), most)

    def without(self, replicas: Collection[str]) -> DeviceLedger:
        """As it will be when these replicas were reaped."""
        return replace(self, holders={name: held for name, held in self.holders.items() if name not in replicas})

    def lack(self, wanted: Amounts) -> str:
        """Why a replica does not find what it wants, with the numbers, for a person."""
        used, texts = self._use().used, []
        for pool, amount in sorted(wanted.items()):
            names = self.pools.get(pool, ())
            if self.choose({pool: amount}) is not None:
                continue
            if pool not in self.pools:
                texts.append(f"{amount:g} of {pool} is wanted, and {_no_pool(self.pools)}")
                continue
            held = [it for it in names if used.get((pool, it))]
            partly = sum(used[pool, it] < WHOLE for it in held)
            shared = f", {partly} of them in part" if partly else ""
            ids = sorted(name for name, it in self.holders.items() if any(each.pool == pool for each in it))
            if amount < 1 and pool in self.share_limits and len(held) < len(names):
                shared += ", and the others are for replicas that want whole ones"
            by = f" (by {listed(ids)})" if ids else ""
            texts.append(f"{amount:g} of {pool} is wanted, and {len(held)} of {len(names)} are held{shared}{by}")
        return "; ".join(texts)

    def devices(self, pool: str) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """The devices of a pool: name, free thousandths, and ids of the holders, sorted."""
        used, holders = self._use().used, dict[str, list[str]]()
        for replica_id, held in sorted(self.holders.items()):
            for device in held:
                if device.pool == pool:
                    holders.setdefault(device.name, []).append(replica_id)
        for name in self.pools.get(pool, ()):
            yield name, max(0, WHOLE - used.get((pool, name), 0)), tuple(holders.get(name, ()))

    def _use(self) -> _Use:
        use = _Use(self)
        for held in self.holders.values():
            use.add(held)
        return use


class _Use:
    """How much of each device is held, while it is computed."""

    def __init__(self, ledger: DeviceLedger) -> None:
        self._ledger = ledger
        self.used: dict[tuple[str, str], int] = {}
        self._shared: dict[str, set[str]] = {}
        """Devices of which replicas hold shares, by pool."""

    def add(self, held: Iterable[HeldDevice]) -> None:
        for device in held:
            at = device.pool, device.name
            self.used[at] = self.used.get(at, 0) + device.thousandths
            if device.thousandths < WHOLE:
                self._shared.setdefault(device.pool, set()).add(device.name)

    def take(self, wanted: Amounts) -> tuple[HeldDevice, ...] | None:
        """Adds what is wanted; adds nothing and returns None if not all of it is free."""
        taken: list[HeldDevice] = []
        for pool, amount in sorted(wanted.items()):
            found = self._find(pool, thousandths_of(amount))
            if found is None:
                return None
            taken += found
        self.add(taken)
        return tuple(taken)

    def _find(self, pool: str, needed: int) -> list[HeldDevice] | None:
        names, used, limit = self._ledger.pools.get(pool, ()), self.used, self._ledger.share_limits.get(pool)
        if needed >= WHOLE:
            free = [it for it in names if not used.get((pool, it))][: needed // WHOLE]
            return [HeldDevice(pool, it) for it in free] if len(free) * WHOLE == needed else None
        is_at_limit = limit is not None and len(self._shared.get(pool, ())) >= limit
        fitting = [
            it for it in names if (held := used.get((pool, it), 0)) + needed <= WHOLE and (held or not is_at_limit)
        ]
        if not fitting:
            return None
        fullest = max(fitting, key=lambda it: used.get((pool, it), 0))  # the first of equals
        return [HeldDevice(pool, fullest, needed)]


def share_limits(pools: Pools, backends: Collection[Backend]) -> dict[str, int]:
    """The number of devices that shares may use, by pool, if the others are needed by replicas that want whole ones.

    So what was accepted finds its devices, whatever the order of starts and ends, as long as the shares of a pool have
    one size. A pool in which not all fit, since the machine has fewer devices than before, has no limit.
    """
    limits: dict[str, int] = {}
    for pool, names in pools.items():
        wanted = [(it.most_replicas, thousandths_of(it.devices[pool])) for it in backends if pool in it.devices]
        whole = sum(count * amount for count, amount in wanted if amount >= WHOLE) // WHOLE
        if whole and _fit(pool, backends, len(names)):
            limits[pool] = len(names) - whole
    return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRules:
    """What this controller can give to replicas. It hands out no devices if both are None: nothing is checked."""

    pools: Pools | None = None
    """Of this machine."""
    resources: Mapping[str, str] | None = None
    """Names of the resources that pods request, by pool."""

    def problems(self, before: Mapping[str, Backend], after: Mapping[str, Backend]) -> Iterator[SpecViolation]:
        """Why the backends of a change cannot have their devices.

        A pool that is short already, since the machine has fewer devices than before, only refuses changes that want
        more of it. The number of replicas is the highest; replicas that a rollout adds do not count.
        """
        changed = [it for name, it in after.items() if it.devices and before.get(name) != it]
        if self.resources is not None:
            yield from _unknown_resources(changed, self.resources)
        if self.pools is None:
            return
        yield from (it for backend in changed for it in _unknown_pools(backend, self.pools))
        for pool in sorted({pool for it in changed for pool in it.devices} & self.pools.keys()):
            size, needs = len(self.pools[pool]), _needs(pool, after.values())
            wanted, wanted_before = sum(needs.values()), sum(_needs(pool, before.values()).values())
            largest = max((it for it in changed if pool in it.devices), key=lambda it: needs.get(it.name, 0))
            path = f"backends.{show(largest.name)}.devices.{show(pool)}"
            is_new = wanted > wanted_before or _fit(pool, before.values(), size)
            if is_new and not _fit(pool, after.values(), size):
                yield SpecViolation(path, _overcommitted(pool, size, needs, after))
                continue
            for backend in changed:
                if backend.max_unavailable == 0 and pool in backend.devices and _needs(pool, (backend,)):
                    with_one_more = [*after.values(), replace(backend, name="", autoscale=None, num_replicas=1)]
                    if not _fit(pool, with_one_more, size):
                        yield SpecViolation(
                            f"backends.{show(backend.name)}.max_unavailable",
                            f"0 leaves no way to replace a replica: all backends together want"
                            f" {shown_amount(wanted)} of {pool}, which has {size}, and none is spare for a new one;"
                            " leave it out, or set 1",
                        )
                    elif not _fit(pool, _during_rollout(backend, before, after), size):
                        yield SpecViolation(
                            f"backends.{show(backend.name)}.max_unavailable",
                            f"0 leaves no way to replace a replica: while those with their present devices run, none of"
                            f" {pool}, which has {size}, is spare for a new one; leave it out, or set 1",
                        )


def _during_rollout(backend: Backend, before: Mapping[str, Backend], after: Mapping[str, Backend]) -> Iterator[Backend]:
    """What is wanted while one replica of a backend has started, and those with other devices still run."""
    old = before.get(backend.name, backend)
    count = min(old.most_replicas, backend.most_replicas)
    yield from (it for it in after.values() if it.name != backend.name)
    yield replace(backend if old.devices == backend.devices else old, autoscale=None, num_replicas=count)
    yield replace(backend, autoscale=None, num_replicas=1)


def _unknown_pools(backend: Backend, pools: Pools) -> Iterator[SpecViolation]:
    for pool in backend.devices:
        if pool not in pools:
            yield SpecViolation(f"backends.{show(backend.name)}.devices.{show(pool)}", _no_pool(pools))


def _no_pool(pools: Pools) -> str:
    known = f"there are {', '.join(sorted(pools))}" if pools else "it has none"
    return f"no pool of this controller's --devices has this name ({known})"


def _unknown_resources(backends: Iterable[Backend], resources: Mapping[str, str]) -> Iterator[SpecViolation]:
    for backend in backends:
        for pool, amount in backend.devices.items():
            path = f"backends.{show(backend.name)}.devices.{show(pool)}"
            if pool not in resources:
                known = ", ".join(sorted(resources))
                yield SpecViolation(path, f"no resource of pods has this name: --device-resources has {known}")
            elif amount < 1:
                yield SpecViolation(path, f"pods hold whole devices only, is {amount:g}")


def _needs(pool: str, backends: Iterable[Backend]) -> dict[str, int]:
    """Thousandths of the pool that each backend wants with its highest number of replicas."""
    needs = {it.name: it.most_replicas * thousandths_of(it.devices[pool]) for it in backends if pool in it.devices}
    return {name: need for name, need in needs.items() if need}


def _fit(pool: str, backends: Iterable[Backend], size: int) -> bool:
    """Whether all replicas find room at the same time: whole devices, then shares, the largest first."""
    counts: dict[int, int] = {}
    for it in backends:
        if pool in it.devices:
            amount = thousandths_of(it.devices[pool])
            counts[amount] = counts.get(amount, 0) + it.most_replicas
    left = size * WHOLE - sum(amount * count for amount, count in counts.items())
    if left < 0:
        return False
    free = [WHOLE] * (size - sum(amount * count for amount, count in counts.items() if amount >= WHOLE) // WHOLE)
    for amount in sorted((it for it in counts if it < WHOLE), reverse=True):
        for at, room in enumerate(free):
            count = min(counts[amount], room // amount)
            free[at] -= count * amount
            counts[amount] -= count
        if counts[amount]:
            return False
    return True


def _overcommitted(pool: str, size: int, needs: Mapping[str, int], backends: Mapping[str, Backend]) -> str:
    most_first = sorted(needs, key=lambda it: (-needs[it], it))
    parts = [
        f"{show(it)} {shown_amount(needs[it])} ({backends[it].most_replicas} × {backends[it].devices[pool]:g})"
        for it in most_first
    ]
    wanted = sum(needs.values())
    short = f"want {shown_amount(wanted)} of {pool}, which has {size}"
    if wanted <= size * WHOLE:
        short = f"{short}, and these shares do not fit into whole devices"
    return f"all backends together {short}: {listed(parts)}; take fewer replicas or devices, or add some to --devices"


def rollout_room(ledger: DeviceLedger, backend: Backend, ending: Collection[str]) -> int | None:
    """How many replicas more than those that stay find devices, once `ending` ones were reaped.

    None: the backend wants no devices. `MOST_COUNTED` at most.
    """
    if not backend.devices:
        return None
    return ledger.without(ending).room_for(backend.devices, MOST_COUNTED)


def listed(names: Collection[str]) -> str:
    """Names for a message, some of them if there are many."""
    shown = [*names][:NAMED]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
