"""Requests that may be repeated: how many are kept, for how long, of whom, and in what form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller_service.core.desired import state
from controller_service.core.desired.state import (
    KEPT_S,
    NO_ANSWERS,
    AnsweredRequest,
    ChangeSet,
    Desired,
    find_answer,
    with_answer,
)
from controller_service.store.documents import ANSWER, SECTIONS, RowKind
from controller_service.store.forms import BadDocument
from slotmesh.security.identity import CALLER, Identity, of_caller
from slotmesh.spec.model import Backend


def answered(number: int, size: int = 1, time_s: float = 0.0) -> AnsweredRequest:
    return AnsweredRequest(key=f"k{number}", digest=f"d{number}", time_s=time_s or float(number), reply=b"x" * size)


def test_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_ANSWERS", 3)
    known = NO_ANSWERS
    for number in range(1, 6):
        known = with_answer(known, answered(number))
    assert list(known) == ["k3", "k4", "k5"]


def test_replies_have_room_together_and_the_newest_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_REPLIES_BYTES", 10)
    known = with_answer(with_answer(with_answer(NO_ANSWERS, answered(1, 4)), answered(2, 5)), answered(3, 5))
    assert list(known) == ["k2", "k3"]
    assert list(with_answer(known, answered(4, 11))) == ["k4"]


def test_they_are_kept_for_a_day() -> None:
    known = with_answer(NO_ANSWERS, answered(1, time_s=1.0))
    assert find_answer(known, "k1", 1.0 + KEPT_S) == known["k1"]
    assert find_answer(known, "k1", 1.1 + KEPT_S) is None
    assert find_answer(known, "k2", 1.0) is None
    assert list(with_answer(known, answered(2, time_s=2.0 + KEPT_S))) == ["k2"]
    assert find_answer(known, "k1", 0.0) is not None, "the clock was set back: unknown is not over"


def test_an_id_that_is_used_again_after_its_time_counts_once() -> None:
    known = with_answer(with_answer(NO_ANSWERS, answered(1)), answered(2))
    again = AnsweredRequest(key="k1", digest="other", time_s=3.0, reply=b"")
    assert list(with_answer(known, again).items()) == [("k2", known["k2"]), ("k1", again)]


def test_the_id_of_one_caller_is_not_that_of_another() -> None:
    keys = {of_caller("same")}
    for name in ("operator/a", "operator/b"):
        token = CALLER.set(Identity(name=name, roles=frozenset()))
        keys.add(of_caller("same"))
        CALLER.reset(token)
    assert len(keys) == 3


def test_a_change_is_applied_together_with_its_answer() -> None:
    desired = Desired().apply(ChangeSet(put_backends=(Backend(name="v1"),), answer=answered(1)))
    assert list(desired.answers) == ["k1"]
    assert desired.apply(ChangeSet(epoch_floor=7)).answers is desired.answers


def test_documents_keep_everything() -> None:
    known = with_answer(with_answer(NO_ANSWERS, answered(2, time_s=9.0)), answered(1, time_s=10.5))
    documents = {key: json.loads(json.dumps(ANSWER.write(it))) for key, it in sorted(known.items())}
    assert list(SECTIONS[RowKind.ANSWER].read(documents).items()) == list(known.items()), "the oldest first"


@pytest.mark.parametrize(
    "document", [7, {}, {"digest": 1, "time_s": 1, "reply": ""}, {"digest": "", "time_s": True, "reply": ""}]
)
def test_a_document_that_is_none_is_refused(document: Any) -> None:
    with pytest.raises(BadDocument, match="answered request k"):
        SECTIONS[RowKind.ANSWER].read({"k": document})
    with pytest.raises(BadDocument, match="base64"):
        SECTIONS[RowKind.ANSWER].read({"k": {"digest": "", "time_s": 1.0, "reply": "?"}})


@pytest.mark.parametrize(
    ("change", "is_configuring"),
    [
        (ChangeSet(put_backends=(Backend(name="v2"),)), True),
        (ChangeSet(delete_backends=("v1",)), True),
        (ChangeSet(delete_backends=("none",), delete_endpoints=("none",), delete_routes=("/none",)), False),
        (ChangeSet(epoch_floor=3), False),
        (ChangeSet(), False),
    ],
)
def test_the_revision_of_a_reply_is_known_before_the_change_is_stored(change: ChangeSet, is_configuring: bool) -> None:
    desired = Desired().apply(ChangeSet(put_backends=(Backend(name="v1"),)))
    after = desired.apply(change)
    assert desired.configured_after(change) == after.configured_at
    assert (after.configured_at == after.revision) is is_configuring
