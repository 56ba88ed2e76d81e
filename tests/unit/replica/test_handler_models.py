"""What the replica reports of its handler's models, whichever thread has loaded them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import slotmesh
from replica_service.shell.handler.models import HandlerModels
from slotmesh.handlers.reporting import HandlerState


class Handler:
    @slotmesh.multiplexed(max_models=4)
    def load(self, model_id: str) -> str:
        return model_id


class SlowState(HandlerState):
    """Passes the first list on only after the second one, if that overtakes it."""

    def __init__(self) -> None:
        super().__init__()
        self.overtaken = threading.Event()

    def loaded(self, models: Iterable[str]) -> None:
        listed = list(models)
        if listed == ["a"]:
            threading.Thread(target=handler.load, args=("b",), daemon=True).start()
            self.overtaken.wait(0.5)
        super().loaded(listed)
        if len(listed) == 2:
            self.overtaken.set()


handler = Handler()


def test_a_list_of_models_that_was_made_earlier_does_not_replace_a_later_one() -> None:
    state = SlowState()
    models = HandlerModels(handler, state)
    thread = threading.Thread(target=handler.load, args=("a",), daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert state.overtaken.wait(10)
    assert set(state.models) == {"a", "b"}
    assert models.loaded == 2
