"""Calls that wait to be sent.

A run has consecutive calls of a queue with one specification. It is columnar: lists of payloads and of sinks, no object
for each call. Pure: a sink is an asyncio future, of which only `done()` is called here.
Invariants: a run takes more calls only until its first one has left. If many lanes have few calls each, these wait
together in one run, a *column*: its `specs` name the lane of each, and differ only in the ordering key. Further calls
of a lane wait until that column has left.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress, groupby
from operator import itemgetter
from typing import Any

from slotmesh.client.calls.buffer import BufferShare
from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.maps import Gather
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.sent_parts import SentPart, is_done

IsOut = Callable[[CallSpec, bytes, Any], bool]
"""Whether to take out a waiting call: its spec, its payload, and its sink or gather. Called in order."""


class WaitingRun:
    """Consecutive calls of a queue that share their spec, or a column. Empty once all have left."""

    __slots__ = ("_at", "followers", "gather", "made_at", "offset", "payloads", "share", "sinks", "spec", "specs")

    def __init__(
        self,
        spec: CallSpec,
        payloads: list[bytes],
        sinks: list[Any],
        gather: Gather | None = None,
        offset: int = 0,
        specs: list[CallSpec] | None = None,
        *,
        share: BufferShare,
    ) -> None:
        self.spec = spec
        self.share = share
        """The share that counts its waiting calls."""
        self.payloads = payloads
        self.sinks = sinks
        """One for each payload; empty where `gather` takes all outcomes."""
        self.gather = gather
        self.offset = offset
        """Place of the first payload in `gather`."""
        self.specs = specs
        """Of a column: one for each payload."""
        self.followers: list[WaitingRunQueue] = []
        """Of a column: queues that get their turn when it has left."""
        self.made_at: float | None = None
        """When its last call was made, or a little later, seconds of the event loop's clock; None while it is new."""
        self._at = 0

    def __len__(self) -> int:
        """Calls that have not left."""
        return len(self.payloads) - self._at

    @property
    def has_wanted(self) -> bool:
        """Whether a caller waits for one of its calls: not all are cancelled."""
        if self.gather is not None:
            return bool(self) and not self.gather.done()
        return not all(map(is_done, self.sinks[self._at :]))

    def is_overdue(self, now: float) -> bool:
        """Whether the timeout of each of its calls has passed."""
        timeout_s = self.spec.options.timeout_s
        return timeout_s is not None and self.made_at is not None and self.made_at + timeout_s <= now

    def sizes(self, count: int) -> list[int]:
        """Payload bytes of the next calls, at most `count` of them, without cancelled ones."""
        self.drop_cancelled(count)
        return list(map(len, self.payloads[self._at : self._at + count]))

    def drop_cancelled(self, count: int) -> None:
        """Drops the cancelled calls, if one of the next `count` is."""
        if self.gather is not None:
            if self.gather.done() and self:
                self.share.give(len(self), sum(map(len, self.payloads[self._at :])))
                self.payloads, self._at = [], 0
        elif any(map(is_done, self.sinks[self._at : self._at + count])):
            self._drop_done()

    def split(self, count: int, nbytes: int) -> SentPart:
        """Takes `count` calls, of `nbytes` payload bytes, off the front."""
        start, stop = self._at, self._at + count
        self.share.give(count, nbytes)
        payloads, sinks, specs = self.payloads, self.sinks, self.specs
        if stop == len(payloads):
            self.payloads, self.sinks, self._at = [], [], 0
        else:
            self._at = stop
        if count < len(payloads):
            payloads, sinks = payloads[start:stop], sinks[start:stop]
            specs = specs and specs[start:stop]
        if specs is None:
            part = SentPart(self.spec, payloads, nbytes, sinks, self.gather, self.offset + start)
        else:
            spec = specs[0]
            if specs[-1] is spec and specs.count(spec) == count:
                specs = None  # one lane alone
            part = SentPart(spec, payloads, nbytes, sinks, specs=specs)
        part.made_at = self.made_at
        return part

    def cancelled_specs(self) -> list[CallSpec]:
        """Specs of the cancelled calls, each once."""
        if self.gather is not None:
            return [self.spec] if self and self.gather.done() else []
        sinks = self.sinks[self._at :]
        if not any(map(is_done, sinks)):
            return []
        if self.specs is None:
            return [self.spec]
        return list(dict.fromkeys(compress(self.specs[self._at :], map(is_done, sinks))))

    def take_out(self, is_out: IsOut) -> tuple[list[WaitingRun], list[SentPart]]:
        """The calls that stay, as runs in order, and those taken out, as parts."""
        payloads, sinks = self.payloads[self._at :], self.sinks[self._at :]
        gather, offset = self.gather, self.offset + self._at
        specs = self.specs and self.specs[self._at :]
        out = [
            is_out(specs[at] if specs else self.spec, payload, gather or sinks[at])
            for at, payload in enumerate(payloads)
        ]
        if not any(out):
            return [self], []
        self.share.give(sum(out), sum(map(len, compress(payloads, out))))
        if gather is not None:
            stretches = [
                (is_taken, [at for at, _ in each]) for is_taken, each in groupby(enumerate(out), itemgetter(1))
            ]
            slices = [(is_taken, places[0], places[-1] + 1) for is_taken, places in stretches]
            stay = [
                WaitingRun(self.spec, payloads[start:stop], [], gather, offset + start, share=self.share)
                for is_taken, start, stop in slices
                if not is_taken
            ]
            for run in stay:
                run.made_at = self.made_at
            return stay, [
                SentPart(
                    self.spec, payloads[start:stop], sum(map(len, payloads[start:stop])), [], gather, offset + start
                )
                for is_taken, start, stop in slices
                if is_taken
            ]
        parts = [
            SentPart(specs[at] if specs else self.spec, [payloads[at]], len(payloads[at]), [sinks[at]])
            for at, is_taken in enumerate(out)
            if is_taken
        ]
        wanted = [not is_taken for is_taken in out]
        if specs:
            self.specs = list(compress(specs, wanted))
        self.payloads, self.sinks, self._at = list(compress(payloads, wanted)), list(compress(sinks, wanted)), 0
        return [self], parts

    def _drop_done(self) -> None:
        wanted = [not sink.done() for sink in self.sinks[self._at :]]
        before = sum(map(len, self.payloads[self._at :]))
        if self.specs is not None:
            for spec, is_wanted in zip(self.specs[self._at :], wanted, strict=True):
                if not is_wanted:
                    spec.queue.settled(1)
            self.specs[:] = compress(self.specs[self._at :], wanted)
        self.payloads[:] = compress(self.payloads[self._at :], wanted)
        self.sinks[:] = compress(self.sinks[self._at :], wanted)
        self._at = 0
        self.share.give(wanted.count(False), before - sum(map(len, self.payloads)))


WaitingRunQueue = CallQueue[WaitingRun]
"""A queue, for the code that takes calls out of it."""
