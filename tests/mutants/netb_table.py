"""Mutants of the data plane by kind: the second of several, exact edges, identities, accounting, tables."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

ROUTER: Final = "router_service/core"
REPLICA: Final = "replica_service/core"
INGRESS: Final = "ingress_service"
CLIENT: Final = "slotmesh/client"
WIRE: Final = "slotmesh/wire"

_SEVERAL: Final = (
    mutant(
        "a client that lacks only the newest of several rosters is suspended at once",
        ROUTER,
        "first = min(self._joining.values())",
        "first = max(self._joining.values())",
        "tests/unit/router/replicas/test_identity_by_part.py",
    ),
    mutant(
        "a session that leaves gives up only the first slice of each run",
        ROUTER,
        "for each in list(run.sents):\n                if each.first:\n                    each.abandon",
        "for each in list(run.sents)[:1]:\n                if each.first:\n                    each.abandon",
        "tests/unit/router/limits/test_accounting.py tests/unit/router/features/test_sessions.py",
    ),
    mutant(
        "calls of a delivery that comes apart all carry the first run id",
        "router_service/shell",
        "first = delivery.first + at if delivery.first else 0",
        "first = delivery.first",
        "tests/unit/router/replicas/test_identity_by_part.py",
    ),
    mutant(
        "a link that takes the middle of a record cuts off the calls behind it",
        REPLICA,
        "((each.lo, taker.lo), (taker.hi, each.hi)) if lo < hi",
        "((each.lo, taker.lo),) if lo < hi",
        "tests/properties/test_replica_takers.py",
    ),
    mutant(
        "no alarm is set for a batch while another one runs",
        REPLICA,
        "if not self.gathered.queue or len(self.running) >= self._control.max_concurrent_batches:\n"
        "            return None",
        "if not self.gathered.queue or self.running:\n            return None",
        "tests/unit/replica/test_exact_bounds.py",
    ),
    mutant(
        "of several slots whose leases end together only the first is reported",
        REPLICA,
        "for slot in state.slots.table.take_lapsed():",
        "for slot in state.slots.table.take_lapsed()[:1]:",
        "tests/unit/replica/test_slot_accounting.py",
    ),
    mutant(
        "only the last of several trusted proxies is passed over",
        INGRESS,
        "host = each\n                if not self.is_proxy(host):\n                    break",
        "host = each\n                break",
        "tests/unit/ingress/test_peers.py tests/unit/ingress/test_exact_bounds.py",
    ),
    mutant(
        "of several failures of a lane the first known one counts, not the earliest",
        CLIENT,
        "call_id if before is None else min(before, call_id)",
        "call_id if before is None else before",
        "tests/unit/client/test_accounting.py",
    ),
    mutant(
        "of several callers whose uploads stall only the first is given up",
        ROUTER,
        "for line in stalled for run in line.incomplete.values()]",
        "for line in stalled[:1] for run in line.incomplete.values()]",
        "tests/unit/router/limits/test_exact_bounds.py",
    ),
    mutant(
        "a delta removes only the first of several replicas",
        ROUTER,
        "for key in delta.removed:\n            if by_key",
        "for key in list(delta.removed)[:1]:\n            if by_key",
        "tests/unit/router/replicas/test_table_delta_of_several.py",
    ),
)

_EDGES: Final = (
    mutant(
        "a batch that fills the bytes of the window exactly is refused",
        ROUTER,
        "self.size - self.large + size <= window.bytes",
        "self.size - self.large + size < window.bytes",
        "tests/unit/router/limits/test_exact_bounds.py",
    ),
    mutant(
        "an upload is not stalled at exactly the end of its time",
        ROUTER,
        "if line.heard_at + patience_s <= now]",
        "if line.heard_at + patience_s < now]",
        "tests/unit/router/limits/test_exact_bounds.py",
    ),
    mutant(
        "a session that a replica has forgotten cannot return at its own epoch",
        REPLICA,
        "remnant is not None and epoch < remnant.epoch",
        "remnant is not None and epoch <= remnant.epoch",
        "tests/unit/replica/test_exact_bounds.py",
    ),
    mutant(
        "a call starts in a held slot at exactly the end of the lease",
        REPLICA,
        "elif now >= slot.expires_at:",
        "elif now > slot.expires_at:",
        "tests/unit/replica/test_exact_bounds.py",
    ),
    mutant(
        "a direct stream holds one slot more than it may",
        REPLICA,
        "if len(held) >= MAX_HELD:",
        "if len(held) > MAX_HELD:",
        "tests/unit/replica/test_exact_bounds.py",
    ),
    mutant(
        "a call enters the client's buffer when nothing is free",
        CLIENT,
        "self.free_calls <= 0 or self.free_bytes <= 0",
        "self.free_calls < 0 or self.free_bytes < 0",
        "tests/unit/client/test_accounting.py",
    ),
    mutant(
        "options of exactly as many bytes as they may have are refused",
        "slotmesh/streams",
        "if size > field.most_bytes:",
        "if size >= field.most_bytes:",
        "tests/unit/wire/test_frame_bounds.py",
    ),
    mutant(
        "trailers of exactly as many bytes as they may have are refused",
        INGRESS,
        "if self._trailer_bytes > self._max_header_bytes:",
        "if self._trailer_bytes >= self._max_header_bytes:",
        "tests/unit/ingress/test_exact_bounds.py",
    ),
    mutant(
        "calls that weigh exactly a batch wait for more",
        REPLICA,
        "gathered.load >= gathered.max_batch_size",
        "gathered.load > gathered.max_batch_size",
        "tests/unit/replica/test_exact_bounds.py",
    ),
)

_IDENTITIES: Final = (
    mutant(
        "an earlier attempt that was held up takes calls from a later one",
        REPLICA,
        "if record.epoch == asking.epoch and record.attempt > asking.attempt:",
        "if False:",
        "tests/unit/replica/test_calls_that_come_again.py",
    ),
    mutant(
        "an earlier attempt that was held up takes joined calls from a later one",
        REPLICA,
        "for each in record.takers if each.attempt > asking.attempt)",
        "for each in record.takers if each.attempt > asking.attempt + 9)",
        "tests/unit/replica/test_calls_that_come_again.py",
    ),
    mutant(
        "a call that its router has sent again is refused as one of an older connection",
        "replica_service/shell",
        "failures.UNHEARD if failure is failures.FENCED else failure",
        "failure",
        "tests/unit/replica/test_calls_that_moved.py",
    ),
    mutant(
        "a session that came back stops counting when its earlier absence is over",
        ROUTER,
        "if self._until.get(key) == until:",
        "if key in self._until:",
        "tests/unit/router/replicas/test_identity_by_part.py",
    ),
    mutant(
        "the answer of a replica about another epoch of a session is taken",
        ROUTER,
        "self.unresolved.get((event.session_id, event.epoch), (None, None))",
        "next((each for key, each in self.unresolved.items() if key[0] == event.session_id), (None, None))",
        "tests/unit/router/replicas/test_identity_by_part.py",
    ),
    mutant(
        "a delta of another generation is followed",
        ROUTER,
        "if (delta.generation, delta.base_revision) != (table.generation, table.revision):",
        "if delta.base_revision != table.revision:",
        "tests/unit/router/replicas/test_identity_by_part.py",
    ),
    mutant(
        "calls of two endpoints share a batch",
        ROUTER,
        "*(run.options.wire, run.endpoint, run.attempt, run.deadline, lane is None,",
        "*(run.options.wire, run.attempt, run.deadline, lane is None,",
        "tests/unit/router/replicas/test_identity_by_part.py",
    ),
    mutant(
        "a slot is used by a caller that may not call its endpoint",
        REPLICA,
        'return slot.identity not in ("", identity) or (endpoints is not None and slot.endpoint not in endpoints)',
        'return slot.identity not in ("", identity)',
        "tests/unit/replica/test_exact_bounds.py",
    ),
    mutant(
        "an rpc of the user's protos that has changed its kind keeps its handler",
        "slotmesh/server",
        "(known := self._known.get(path)) is not None and known[0] == kind:",
        "(known := self._known.get(path)) is not None:",
        "tests/unit/runtime/test_own_rpcs.py",
    ),
)

_ACCOUNTS: Final = (
    mutant(
        "large results that were read count on as unread",
        "router_service/shell/clients",
        "self._large_bytes -= chunk.total",
        "self._large_bytes -= 0",
        "tests/unit/router/shell/test_outbox_accounting.py",
    ),
    mutant(
        "calls without a reply earn no retries",
        ROUTER,
        "for sent, offset, _, count in replica.inflight.slices(event.done) if event.done else ():\n"
        "            backend.retries.answered(count, now)\n",
        "for sent, offset, _, count in replica.inflight.slices(event.done) if event.done else ():\n",
        "tests/unit/router/limits/test_accounting.py",
    ),
    mutant(
        "an account that was forgotten still counts against its caller",
        ROUTER,
        "self._held[account.caller] -= 1\n",
        "pass\n",
        "tests/unit/router/limits/test_tenants.py",
    ),
    mutant(
        "copies for shadows count among the calls of their backend",
        ROUTER,
        "if run.shadow_of is None:\n            self.of(run.endpoint).times",
        "if True:\n            self.of(run.endpoint).times",
        "tests/unit/router/limits/test_accounting.py",
    ),
    mutant(
        "a slot whose stream ends during its call stays counted as busy",
        REPLICA,
        "if slot.state is SlotState.BUSY:\n            self.busy -= 1\n            self._dispatched(slot)",
        "if slot.state is SlotState.BUSY:\n            self._dispatched(slot)",
        "tests/unit/replica/test_slot_accounting.py",
    ),
    mutant(
        "a call that has ended in a slot stays counted in its router's slots",
        REPLICA,
        "link.in_slots -= 1\n",
        "pass\n",
        "tests/unit/replica/test_slot_accounting.py",
    ),
    mutant(
        "calls that go on over another router still count for their tenant at the first one",
        CLIENT,
        "self._count(part, -part.left, -part.nbytes)",
        "self.calls -= part.left\n                self.nbytes -= part.nbytes",
        "tests/unit/client/test_accounting.py",
    ),
    mutant(
        "a map that is given up keeps its room in the client's buffer",
        CLIENT,
        "self.share.give(len(self), sum(map(len, self.payloads[self._at :])))\n                self.payloads",
        "self.payloads",
        "tests/unit/client/test_accounting.py",
    ),
)

_TABLES: Final = (
    mutant(
        "FAILED_PRECONDITION of a handler counts as a fault of its backend",
        ROUTER,
        "frozenset({3, 5, 6, 7, 9, 11, 16})",
        "frozenset({3, 5, 6, 7, 11, 16})",
        "tests/unit/router/lifecycle/test_call_ends.py",
    ),
    mutant(
        "chunks of 16 KiB, which older peers send, are refused",
        "slotmesh/streams",
        "MIN_CHUNK_BYTES: Final = 16 * 1024",
        "MIN_CHUNK_BYTES: Final = 32 * 1024",
        "tests/unit/wire/test_what_peers_rely_on.py",
    ),
    mutant(
        "the length of a message around a spliced one does not count the longer length within",
        "slotmesh/streams",
        "added += len(lengths[-1]) - (start - at)",
        "pass",
        "tests/unit/wire/test_spliced_frames.py",
    ),
    mutant(
        "a frame that has two batches is cut",
        "slotmesh/streams",
        "if len(found) != 1:\n            return None\n        levels += found\n",
        "if not found:\n            return None\n        levels += found[:1]\n",
        "tests/unit/wire/test_spliced_frames.py",
    ),
    mutant(
        "of a message with several frames, one is cut",
        "slotmesh/streams",
        "if len(present) == 1 else None",
        "if present else None",
        "tests/unit/wire/test_spliced_frames.py",
    ),
    mutant(
        "a chunk that is its whole payload is copied",
        "slotmesh/streams",
        "if len(data) == self.total:",
        "if False:",
        "tests/unit/wire/test_spliced_frames.py",
    ),
    mutant(
        "payloads of a frame with ends of large results are spliced into the wrong batch",
        "replica_service/shell",
        "if len(self._batches) == 1 and not self._ends.large else None",
        "if len(self._batches) == 1 else None",
        "tests/unit/replica/test_outbox.py",
    ),
)

NETB: Final = (*_SEVERAL, *_EDGES, *_IDENTITIES, *_ACCOUNTS, *_TABLES)
