"""Devices under arbitrary histories: no device has two holders, none is lost, and what is refused does not fit.

The model is naive: for each device the replicas that hold it, looked through each time.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controller_service.core.devices import DeviceLedger, DeviceRules, share_limits
from slotmesh.spec.devices import HeldDevice
from slotmesh.spec.model import Backend
from tests.support.examples import examples

POOLS = {"cuda": ("0", "1", "2", "3"), "fpga": ("a", "b")}
AMOUNTS = st.sampled_from([1.0, 2.0, 3.0, 0.5, 0.3, 0.25, 0.7, 0.001, 0.999])
WANTED = st.dictionaries(st.sampled_from([*POOLS]), AMOUNTS, min_size=1)


def exact(amount: float) -> Fraction:
    return Fraction(str(amount))


class DeviceMachine(RuleBasedStateMachine):
    """Replicas start and are reaped."""

    def __init__(self) -> None:
        super().__init__()
        self.names = count()
        self.holders: dict[str, tuple[HeldDevice, ...]] = {}
        self.shares: dict[tuple[str, str], dict[str, Fraction]] = {
            (pool, name): {} for pool, names in POOLS.items() for name in names
        }

    @property
    def ledger(self) -> DeviceLedger:
        return DeviceLedger(pools=POOLS, holders=dict(self.holders))

    def fits(self, pool: str, amount: float) -> bool:
        used = [sum(each.values(), Fraction(0)) for (of, _), each in self.shares.items() if of == pool]
        if amount >= 1:
            return sum(not it for it in used) >= amount
        return any(it + exact(amount) <= 1 for it in used)

    @rule(wanted=WANTED)
    def start(self, wanted: dict[str, float]) -> None:
        ledger = self.ledger
        chosen = ledger.choose(wanted)
        lacking = [pool for pool, amount in wanted.items() if not self.fits(pool, amount)]
        assert (chosen is None) == bool(lacking)
        assert [pool for pool in POOLS if f" of {pool} is wanted" in ledger.lack(wanted)] == sorted(lacking)
        if chosen is None:
            return
        name = f"r{next(self.names)}"
        self.holders[name] = chosen
        for pool, amount in wanted.items():
            held = [it for it in chosen if it.pool == pool]
            assert sum(Fraction(it.thousandths, 1000) for it in held) == exact(amount)
            for device in held:
                share, others = Fraction(device.thousandths, 1000), self.shares[pool, device.name]
                if amount < 1:  # a free device is divided only if no divided one has room
                    fuller = [sum(it.values()) for (of, _), it in self.shares.items() if of == pool and it]
                    assert others or not any(it + share <= 1 for it in fuller)
                others[name] = share

    @rule(data=st.data())
    def reap(self, data: st.DataObject) -> None:
        if self.holders:
            name = data.draw(st.sampled_from(sorted(self.holders)))
            del self.holders[name]
            for each in self.shares.values():
                each.pop(name, None)

    @rule(wanted=WANTED)
    def room_is_how_many_start_one_after_another(self, wanted: dict[str, float]) -> None:
        ledger, started = self.ledger, 0
        while started < 6 and (chosen := ledger.choose(wanted)) is not None:
            started += 1
            ledger = DeviceLedger(pools=POOLS, holders={**ledger.holders, f"new{started}": chosen})
        assert self.ledger.room_for(wanted, 6) == started

    @invariant()
    def no_device_has_more_holders_than_it_can(self) -> None:
        for each in self.shares.values():
            assert sum(each.values()) <= 1

    @invariant()
    def the_ledger_shows_what_is_held(self) -> None:
        for pool in POOLS:
            for name, free, ids in self.ledger.devices(pool):
                assert Fraction(free, 1000) == 1 - sum(self.shares[pool, name].values())
                assert ids == tuple(sorted(self.shares[pool, name]))


TestDevices: Any = DeviceMachine.TestCase
TestDevices.settings = settings(max_examples=examples(100), stateful_step_count=30)


BACKENDS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([1.0, 2.0, 0.5, 0.3, 0.4, 0.7, 0.25])), min_size=1, max_size=3
)


def can_be_packed(amounts: list[Fraction], free: list[Fraction]) -> bool:
    """Whether all amounts find room, by trying each way."""
    if not amounts:
        return True
    first, *others = amounts
    for at in {room: number for number, room in enumerate(free)}.values():
        if free[at] >= first and can_be_packed(others, [*free[:at], free[at] - first, *free[at + 1 :]]):
            return True
    return False


@settings(max_examples=examples(300), deadline=None)
@given(BACKENDS, st.integers(1, 4))
def test_what_is_accepted_can_be_packed_and_too_much_is_refused(wanted: list[tuple[int, float]], size: int) -> None:
    backends = {
        f"b{at}": Backend(name=f"b{at}", num_replicas=replicas, devices={"cuda": amount})
        for at, (replicas, amount) in enumerate(wanted)
    }
    rules = DeviceRules(pools={"cuda": tuple(map(str, range(size)))})
    problems = [*rules.problems({}, backends)]
    total = sum((exact(amount) * replicas for replicas, amount in wanted), Fraction(0))
    whole = sum(int(amount) * replicas for replicas, amount in wanted if amount >= 1)
    shares = [exact(amount) for replicas, amount in wanted if amount < 1 for _ in range(replicas)]
    if total > size:
        (problem,) = problems
        assert f"want {float(total):g} of cuda, which has {size}" in problem.message
    if not shares:
        assert bool(problems) == (total > size)
    if not problems:
        assert can_be_packed(sorted(shares, reverse=True), [Fraction(1)] * (size - whole))


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([1.0, 2.0]),
    st.integers(1, 6),
    st.sampled_from([0.5, 0.3, 0.25, 0.6]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60),
)
def test_what_was_accepted_finds_its_devices_whatever_ends_before(
    size: int, wholes: int, whole: float, shares: int, share: float, steps: list[tuple[bool, int]]
) -> None:
    pools = {"cuda": tuple(map(str, range(size)))}
    backends = {
        "whole": Backend(name="whole", num_replicas=wholes, devices={"cuda": whole}),
        "share": Backend(name="share", num_replicas=shares, devices={"cuda": share}),
    }
    if [*DeviceRules(pools=pools).problems({}, backends)]:
        return
    limits, holders, numbers = share_limits(pools, backends.values()), dict[str, tuple[HeldDevice, ...]](), count()
    for is_whole, choice in steps:
        name = "whole" if is_whole else "share"
        own = sorted(it for it in holders if it.startswith(name))
        is_surge = len(own) >= backends[name].least_replicas
        if own and len(own) > choice:
            del holders[own[choice]]
            continue
        chosen = DeviceLedger(pools=pools, holders=holders, share_limits=limits).choose(backends[name].devices)
        if is_surge and (is_whole or chosen is None):
            continue  # a rollout adds shares, if there is room; those of whole ones end before others count on theirs
        assert chosen is not None
        holders[f"{name}{next(numbers)}"] = chosen


def test_a_rollout_of_shares_does_not_take_the_device_that_another_backend_was_promised() -> None:
    pools = {"cuda": ("0", "1")}
    backends = (
        Backend(name="share", num_replicas=2, devices={"cuda": 0.5}),
        Backend(name="whole", num_replicas=1, devices={"cuda": 1}),
    )
    half = (HeldDevice("cuda", "0", 500),)
    ledger = DeviceLedger(pools=pools, holders={"a": half, "b": half}, share_limits=share_limits(pools, backends))
    assert ledger.choose({"cuda": 0.5}) is None
    assert ledger.lack({"cuda": 0.5}) == (
        "0.5 of cuda is wanted, and 1 of 2 are held, and the others are for replicas that want whole ones (by a, b)"
    )
    assert ledger.choose({"cuda": 1}) == (HeldDevice("cuda", "1"),)


def test_a_pool_that_there_is_no_more_is_named() -> None:
    ledger = DeviceLedger(pools={"gpu": ("0",)}, holders={"a": (HeldDevice("cuda", "0"),)})
    assert ledger.lack({"cuda": 1}) == (
        "1 of cuda is wanted, and no pool of this controller's --devices has this name (there are gpu)"
    )
