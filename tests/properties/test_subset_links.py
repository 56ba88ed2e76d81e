"""The links of a router to a part of the replicas, against a model that divides the replicas anew and counts naively.

Tables, links and calls change in any order, with room for few links beside the subset. Whatever happens, no replica
that calls need is kept out for good, and once all is well again the links are those of the plain division.
"""

from __future__ import annotations

from itertools import count
from math import inf
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router_service.core.calls import Reserve
from router_service.core.commands import CloseLink, DeliverFailure, OpenLink, RetryLink, RouterCommand
from router_service.core.events import SlotRequested
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing import replica_links
from router_service.core.routing.replica_links import IDLE_S, LINGER_S, WIDENED_S
from router_service.core.routing.subsets import LEAST_LINKS, copies_of, divided
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import caller, options

SIZE = 3
FEW = {"MAX_EXTRA": 2, "MAX_UNREACHED": 3, "MAX_WATCHED": 2}
KEYS = "klm"
QUIET_S = max(IDLE_S, WIDENED_S, LINGER_S)


class WatchedWorld(World):
    """Checks each change of a link as it happens."""

    opened: set[RoutedReplica]

    def do(self, commands: list[RouterCommand]) -> None:
        for command in commands:
            match command:
                case OpenLink(replica):
                    assert replica not in self.opened, "a link is opened once"
                    self.opened.add(replica)
                case CloseLink(replica):
                    self.opened.remove(replica)
                    assert not any([replica.outbox, replica.ops, replica.link_users]), "a link closes that is needed"
                    assert not self.held[replica.replica_id], "a link closes although calls are not answered"
                case _:
                    pass
        super().do([each for each in commands if not (isinstance(each, RetryLink) or self._is_of_slot(each))])

    def _is_of_slot(self, command: RouterCommand) -> bool:
        """Reservations fail, as nobody grants one."""
        return isinstance(command, DeliverFailure) and command.caller is not self.caller


class SubsetLinksMachine(RuleBasedStateMachine):
    """One router of several, and twelve replicas to begin with, in two backends."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        for name, value in FEW.items():
            self.patches.setattr(replica_links, name, value)
        self.calls, self.numbers, self.epochs = count(1), count(12), count(1)
        self.world: WatchedWorld
        self.shares: dict[str, set[str] | None] = {}
        """By backend, this router's share by the newest table; None: all replicas."""

    @initialize(seed=st.integers(0, 9))
    def begin(self, seed: int) -> None:
        backends = {"x": [f"x{number}" for number in range(8)], "y": [f"y{number}" for number in range(4)]}
        routers = ["me", "second", "third", "fourth"]
        with patch.object(WatchedWorld, "opened", set[RoutedReplica](), create=True):
            world = self.world = WatchedWorld(
                backends,
                subset_size=SIZE,
                routers=routers,
                links_at_once=False,
                seed=seed,
                weights={"x": 0.7, "y": 0.3},
            )
        world.opened = {each for each in self.replicas() if each.has_link}
        self.divide()

    # -- the model ---------------------------------------------------------------------------------------------------

    def replicas(self) -> list[RoutedReplica]:
        return [*self.world.scheduler.topology.replicas.values()]

    def of(self, backend: str) -> list[RoutedReplica]:
        return [each for each in self.replicas() if each.backend_name == backend]

    def divide(self) -> None:
        routers = {*self.world.routers, "me"}
        live = {name: {it.replica_id for it in self.of(name) if not it.draining} for name in self.world.backends}
        copies = copies_of(len(routers), {name: len(ids) for name, ids in live.items()}, SIZE)
        self.shares = {
            name: divided(routers, ids, copies[name])["me"] if copies[name] < len(routers) else None
            for name, ids in live.items()
        }

    def usable(self, replica: RoutedReplica) -> bool:
        is_suspect = replica.replica_id in self.world.suspects
        return not (replica.draining or replica.has_failed or is_suspect)

    def push(self) -> None:
        before = self.world.scheduler.topology.table
        self.world.push()
        after = self.world.scheduler.topology.table
        if after.router_addresses != before.router_addresses or any(
            before.backends.get(name) is not each for name, each in after.backends.items()
        ):
            self.divide()
        for each in self.replicas():
            self.world.replicas.setdefault(each.replica_id, each)

    def some(self, data: st.DataObject, **having: Any) -> RoutedReplica | None:
        found = [it for it in self.replicas() if all(getattr(it, name) == value for name, value in having.items())]
        return data.draw(st.sampled_from(found)) if found else None

    # -- links -------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def link(self, data: st.DataObject) -> None:
        if replica := self.some(data, has_link=True, linked=False):
            self.world.link(replica.replica_id)

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if replica := self.some(data, has_link=True, linked=False):
            self.world.fail_link(replica.replica_id)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if replica := self.some(data, linked=True):
            self.world.lose(replica.replica_id)

    @rule(data=st.data(), is_found_at_its_link=st.booleans())
    def drain(self, data: st.DataObject, is_found_at_its_link: bool) -> None:
        if is_found_at_its_link and (replica := self.some(data, has_link=True, linked=False)):
            self.world.link(replica.replica_id, draining=True)
        elif replica := self.some(data, linked=True):
            self.world.drain(replica.replica_id)

    # -- tables ------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def suspect(self, data: st.DataObject) -> None:
        if replica := self.some(data):
            self.world.suspects ^= {replica.replica_id}
            self.push()

    @rule(backend=st.sampled_from("xy"), more=st.integers(1, 3))
    def add(self, backend: str, more: int) -> None:
        self.world.backends[backend] += [f"{backend}{next(self.numbers)}" for _ in range(more)]
        self.push()

    @rule(data=st.data(), backend=st.sampled_from("xy"))
    def remove(self, data: st.DataObject, backend: str) -> None:
        if names := self.world.backends[backend]:
            names.remove(data.draw(st.sampled_from(names)))
            self.push()

    @rule(routers=st.integers(1, 7))
    def change_routers(self, routers: int) -> None:
        self.world.routers = ["me", *(f"router-{number}" for number in range(1, routers))]
        self.push()

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def own(self, data: st.DataObject, key: str) -> None:
        if replica := self.some(data):
            self.world.owner_of[key] = replica.replica_id, next(self.epochs)
            self.push()

    # -- calls -------------------------------------------------------------------------------------------------------

    @rule(calls=st.integers(1, 6))
    def submit(self, calls: int) -> None:
        before = {each: len(self.world.got(each.replica_id)) for each in self.replicas()}
        self.world.submit([next(self.calls) for _ in range(calls)])
        for each, got in before.items():
            assert each.is_member or len(self.world.got(each.replica_id)) == got, "others get no unkeyed calls"

    @rule(key=st.sampled_from(KEYS))
    def submit_keyed(self, key: str) -> None:
        if key in self.world.owner_of:
            self.world.submit([next(self.calls)], ordering_key=key)

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        if names := sorted(name for name, held in self.world.held.items() if held):
            self.world.complete(data.draw(st.sampled_from(names)))

    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        if replica := self.some(data):
            wanted = Reserve(ttl_s=1.0, replica_id=replica.replica_id)
            self.world.step(SlotRequested(caller(), "e", options(timeout_s=5.0), wanted))

    @rule(after_s=st.sampled_from([0.1, LINGER_S, WIDENED_S, IDLE_S]))
    def wait(self, after_s: float) -> None:
        """Time passes, as the shell has it: each deadline is met."""
        until, scheduler = self.world.now + after_s, self.world.scheduler
        for _ in range(1_000):
            due = scheduler.next_deadline() or inf
            self.world.at(max(self.world.now, min(until, due)))
            if self.world.now >= until:
                return
        pytest.fail("the deadline of something is not met by what is done then")

    # -- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def links_are_those_that_were_opened(self) -> None:
        connected = self.world.scheduler.topology.connected
        assert {each for each in connected.values() if each.has_link} == self.world.opened

    @invariant()
    def the_share_is_linked(self) -> None:
        for name, share in self.shares.items():
            for each in self.of(name):
                if share is None or each.replica_id in share:
                    assert (each.has_link, each.is_member) == (True, True)

    @invariant()
    def enough_members_can_be_used(self) -> None:
        for name in self.shares:
            replicas = self.of(name)
            members = [each for each in replicas if each.is_member and self.usable(each)]
            unreached = [each for each in replicas if each.is_member and each.has_failed]
            wanted = min(LEAST_LINKS, sum(map(self.usable, replicas)))
            assert len(members) >= wanted or len(unreached) >= FEW["MAX_UNREACHED"]

    def teardown(self) -> None:
        """All is well again: each call has an outcome, and the links are those of the division."""
        try:
            self.world.suspects.clear()
            for name in self.world.backends:
                self.add(name, 1)
            for key in self.world.owner_of:
                self.world.owner_of[key] = self.world.backends["x"][-1], next(self.epochs)
            self.push()
            for _ in range(12):
                for each in self.replicas():
                    if each.has_link and not each.linked:
                        self.world.link(each.replica_id)
                for name in [name for name, held in self.world.held.items() if held]:
                    self.world.complete(name)
                self.wait(QUIET_S / 4)
            self.check_calm()
        finally:
            self.patches.undo()

    def check_calm(self) -> None:
        ended = next(self.calls)
        self.world.submit([ended])
        for name in [name for name, held in self.world.held.items() if held]:
            self.world.complete(name)
        assert self.world.outcomes[ended] == OK
        assert self.world.outcomes.keys() >= {*range(1, ended)}, "no call is without an outcome"
        for name, share in self.shares.items():
            live = [each for each in self.of(name) if not each.draining]
            wanted = {each.replica_id for each in live} if share is None else share
            members = {each.replica_id for each in live if each.is_member}
            assert members >= wanted
            assert len(members) == max(len(wanted), min(LEAST_LINKS, len(live)))
            assert {each.replica_id for each in live if each.has_link} == members


TestSubsetLinks = SubsetLinksMachine.TestCase
