"""Defects of a mesh, seeded into correct histories: each takes a history and makes one that is not correct any more.

A defect that finds nothing to spoil in a history rejects it, as hypothesis calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import Final, TypeVar

import msgspec
from hypothesis import reject
from hypothesis import strategies as st

from tests.history.model import Execution, History, Outcome

ThingT = TypeVar("ThingT")
Defect = Callable[[History, st.DataObject], History]


def lost_outcome(history: History, data: st.DataObject) -> History:
    gone = _one(data, history.outcomes)
    return replace(history, outcomes=[it for it in history.outcomes if it is not gone])


def doubled_outcome(history: History, data: st.DataObject) -> History:
    again = _one(data, history.outcomes)
    return replace(history, outcomes=[*history.outcomes, msgspec.structs.replace(again, at=again.at + 0.01)])


def late_outcome(history: History, data: st.DataObject) -> History:
    late = _one(data, history.outcomes)
    (call,) = [it for it in history.calls if it.tag == late.tag]
    assert call.deadline is not None
    return _with_outcome(history, msgspec.structs.replace(late, at=call.deadline + 1.001))


def foreign_result(history: History, data: st.DataObject) -> History:
    crossed = _one(data, (it for it in history.outcomes if it.is_result))
    return _with_outcome(history, msgspec.structs.replace(crossed, reply="another"))


def double_execution(history: History, data: st.DataObject) -> History:
    strict = {call.tag for call in history.calls if not call.idempotent}
    again = _one(data, (it for it in history.executions if it.tag in strict))
    at = max(it.started_at for it in history.executions) + 1.0
    return _with_executions(history, [*history.executions, replace(again, started_at=at, ended_at=at + 0.001)])


def swapped_order(history: History, data: st.DataObject) -> History:
    """Two neighbours of a lane are executed the wrong way round."""
    calls = {call.tag: call for call in history.calls if call.key and not call.idempotent}
    lanes: dict[object, list[Execution]] = {}
    for execution in sorted(history.executions, key=attrgetter("started_at")):
        if execution.tag in calls:
            lanes.setdefault(calls[execution.tag].lane, []).append(execution)
    first, second = _one(data, ((a, b) for lane in lanes.values() for a, b in pairwise(lane)))
    swapped = {id(first): replace(first, tag=second.tag), id(second): replace(second, tag=first.tag)}
    return _with_executions(history, [swapped.get(id(it), it) for it in history.executions])


def rerun_backwards(history: History, data: st.DataObject) -> History:
    """What is idempotent is executed again the wrong way round: the last ones first."""
    calls = {call.tag: call for call in history.calls if call.key and call.idempotent}
    runs: dict[str, list[Execution]] = {}
    for execution in history.executions:
        if execution.tag in calls:
            runs.setdefault(execution.tag, []).append(execution)
    again = [run[1] for run in runs.values() if len(run) == 2]
    pairs = (
        (a, b)
        for a, b in pairwise(again)
        if calls[a.tag].lane == calls[b.tag].lane and calls[a.tag].sent_at == calls[b.tag].sent_at
    )
    first, second = _one(data, pairs)
    swapped = {id(first): replace(first, tag=second.tag), id(second): replace(second, tag=first.tag)}
    return _with_executions(history, [swapped.get(id(it), it) for it in history.executions])


def overlap(history: History, data: st.DataObject) -> History:
    """An execution takes longer, into the next one of its key."""
    ordered = sorted((it for it in history.executions if it.key), key=attrgetter("started_at"))
    pairs = [
        (one, next((it for it in ordered[index + 1 :] if it.key == one.key), None)) for index, one in enumerate(ordered)
    ]
    long, following = _one(data, ((a, b) for a, b in pairs if b is not None and a.ended_at is not None))
    longer = replace(long, ended_at=following.started_at + 0.0005)
    return _with_executions(history, [longer if it is long else it for it in history.executions])


def left_out(history: History, data: st.DataObject) -> History:
    """A call with a result was not executed."""
    answered = {it.tag for it in history.outcomes if it.is_result}
    gone = _one(data, sorted({it.tag for it in history.executions} & answered))
    return _with_executions(history, [it for it in history.executions if it.tag != gone])


def left_out_within(history: History, data: st.DataObject) -> History:
    """The same, and a later call of the lane was executed."""
    calls = {call.tag: call for call in history.calls if call.key}
    executed = {it.tag for it in history.executions} & calls.keys()
    answered = {it.tag for it in history.outcomes if it.is_result}
    within = {
        tag
        for tag in executed & answered
        if any(calls[it].lane == calls[tag].lane and calls[it].sequence > calls[tag].sequence for it in executed)
    }
    gone = _one(data, sorted(within))
    return _with_executions(history, [it for it in history.executions if it.tag != gone])


def lie_no(history: History, data: st.DataObject) -> History:
    executed = {it.tag for it in history.executions}
    lie = _one(data, (it for it in history.outcomes if it.tag in executed))
    return _with_outcome(history, Outcome(tag=lie.tag, at=lie.at, reason="DRAINING", executed="NO"))


def lie_yes(history: History, data: st.DataObject) -> History:
    executed = {it.tag for it in history.executions}
    lie = _one(data, (it for it in history.outcomes if it.tag not in executed))
    return _with_outcome(history, Outcome(tag=lie.tag, at=lie.at, reason="RESULT_EVICTED", executed="YES"))


def says_nothing(history: History, data: st.DataObject) -> History:
    mute = _one(data, (it for it in history.outcomes if not it.is_result))
    return _with_outcome(history, msgspec.structs.replace(mute, executed=""))


def late_start(history: History, data: st.DataObject) -> History:
    """A replica that was cut off executes, when it comes back, what was given up."""
    executed = {it.tag for it in history.executions}
    lost = _one(data, (it for it in history.outcomes if it.executed == "UNKNOWN" and it.tag not in executed))
    (call,) = [it for it in history.calls if it.tag == lost.tag]
    at = lost.at + 0.6
    late = Execution(tag=call.tag, key=call.key, pid=1, started_at=at, ended_at=at + 0.0001)
    return _with_executions(history, [*history.executions, late])


def uncalled(history: History, data: st.DataObject) -> History:
    stranger = replace(_one(data, history.executions), tag="nobody's", key="")
    return _with_executions(history, [*history.executions, stranger])


DEFECTS: Final[Mapping[Defect, str]] = {
    lost_outcome: "lost",
    doubled_outcome: "doubled",
    late_outcome: "late",
    foreign_result: "lie",
    double_execution: "executed twice",
    swapped_order: "order",
    rerun_backwards: "order",
    overlap: "overlap",
    left_out: "lie",
    left_out_within: "gap",
    lie_no: "lie",
    lie_yes: "lie",
    says_nothing: "lie",
    late_start: "late start",
    uncalled: "unknown call",
}
"""Each with the invariant that it breaks, and maybe others with it."""


def _one(data: st.DataObject, things: Iterable[ThingT]) -> ThingT:
    """Any of them; rejects the history where there is none."""
    found = list(things)
    if not found:
        reject()
    return data.draw(st.sampled_from(found))


def _with_outcome(history: History, changed: Outcome) -> History:
    return replace(history, outcomes=[changed if it.tag == changed.tag else it for it in history.outcomes])


def _with_executions(history: History, executions: list[Execution]) -> History:
    return replace(history, executions=executions)
