"""What waits for payloads, against a model that keeps one list."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router_service.core.features.uploads import Held
from tests.support.examples import examples

KEYS = st.sampled_from(("", "red", "green"))


@dataclass(eq=False)
class Item:
    key: str
    is_complete: bool


class HeldMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.held: Held[Item] = Held()
        self.model: list[Item] = []
        """What is held, in the order in which it came."""

    def released(self) -> list[Item]:
        """What nothing holds up any more; it leaves the model."""
        blocked: set[str] = set()
        out: list[Item] = []
        for item in self.model:
            if item.is_complete and item.key not in blocked:
                out.append(item)
            elif item.key:
                blocked.add(item.key)
        self.model = [item for item in self.model if item not in out]
        return out

    @rule(key=KEYS)
    def a_large_one_comes(self, key: str) -> None:
        item = Item(key, is_complete=False)
        self.held.add_incomplete(item, key)
        self.model.append(item)

    @rule(key=KEYS)
    def a_small_one_comes(self, key: str) -> None:
        item = Item(key, is_complete=True)
        has_to_wait = any(each.key == key for each in self.model) and bool(key)
        assert self.held.add_behind(item, key) is has_to_wait
        if has_to_wait:
            self.model.append(item)

    @precondition(lambda self: any(not item.is_complete for item in self.model))
    @rule(data=st.data())
    def one_is_complete(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from([item for item in self.model if not item.is_complete]))
        item.is_complete = True
        assert self.held.complete(item) == self.released()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def one_is_not_wanted(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.model))
        self.model.remove(item)
        assert self.held.remove(item) == self.released()

    @rule(key=KEYS)
    def an_unknown_one_is_not_wanted(self, key: str) -> None:
        assert self.held.remove(Item(key, is_complete=False)) == []

    @invariant()
    def all_that_is_held_is_told(self) -> None:
        assert set(self.held) == set(self.model)
        assert len(list(self.held)) == len(self.model)
        assert bool(self.held) is bool(self.model)
        for key in ("red", "green"):
            assert [item for item in self.held if item.key == key] == [item for item in self.model if item.key == key]


TestHeld = HeldMachine.TestCase
TestHeld.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
