"""Requests that were answered and may be repeated: which they were, and what they were answered.

Purpose: a request that is repeated after a lost reply takes effect once. Its caller names it by an id.
Invariants: immutable; the newest are kept, at most `MAX_ANSWERS` of them with `MAX_REPLIES_BYTES` of replies, each for
`KEPT_S`. A request that changed nothing is not among them: when it is repeated, it takes effect then.
Owner: the store, by `Desired`: an answer is stored together with the change. Those of requests that change no store are
kept by `shell.replica_control`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

MAX_ANSWERS: Final = 1_000
MAX_REPLIES_BYTES: Final = 2**20
KEPT_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """A request that has changed something."""

    key: str
    """The caller's identity and the id that it has chosen: two callers may choose the same id."""
    digest: str
    """Of the request, the name of its rpc included."""
    time_s: float
    """When it was answered, seconds since 1970."""
    reply: bytes
    """The message that answered it."""


AnsweredRequests: TypeAlias = Mapping[str, AnsweredRequest]
"""By key, oldest first."""
NO_ANSWERS: Final[AnsweredRequests] = MappingProxyType({})


def with_answer(known: AnsweredRequests, new: AnsweredRequest) -> AnsweredRequests:
    """With one more, and without those that are too old, or for which there is no room."""
    kept = [new]
    size = len(new.reply)
    for each in reversed([*known.values()]):
        size += len(each.reply)
        if len(kept) == MAX_ANSWERS or size > MAX_REPLIES_BYTES or _is_over(each, new.time_s):
            break
        if each.key != new.key:
            kept.append(each)
    return MappingProxyType({each.key: each for each in reversed(kept)})


def find_answer(known: AnsweredRequests, key: str, now_s: float) -> AnsweredRequest | None:
    """What a request of that key was answered, unless that was too long ago. `now_s`: seconds since 1970."""
    answer = known.get(key)
    return None if answer is None or _is_over(answer, now_s) else answer


def _is_over(answer: AnsweredRequest, now_s: float) -> bool:
    return now_s - answer.time_s > KEPT_S
