"""The table of mutants, by room. Texts are short, so that they survive refactorings that keep the decision."""

from __future__ import annotations

from typing import Final

from tests.mutants.affinity_table import AFFINITY
from tests.mutants.balancers_table import BALANCERS
from tests.mutants.broadcasts_table import BROADCASTS
from tests.mutants.client_table import CLIENT
from tests.mutants.clients_table import CLIENTS
from tests.mutants.deploy_table import DEPLOY
from tests.mutants.devices_table import DEVICES
from tests.mutants.discovery_table import DISCOVERY
from tests.mutants.edge_table import EDGE
from tests.mutants.edges_table import EDGES
from tests.mutants.etcd_table import ETCD
from tests.mutants.fence_table import FENCE
from tests.mutants.finish_table import FINISH
from tests.mutants.guards_table import GUARDS
from tests.mutants.hold_table import HOLD
from tests.mutants.http_connection_table import HTTP_CONNECTION
from tests.mutants.http_table import HTTP
from tests.mutants.islands_table import ISLANDS
from tests.mutants.last_questions_table import LAST_QUESTIONS
from tests.mutants.models_table import MODELS
from tests.mutants.mutant import mutant
from tests.mutants.net_control_table import NET_CONTROL
from tests.mutants.netb_table import NETB
from tests.mutants.operator_table import OPERATOR
from tests.mutants.placement_table import PLACEMENT
from tests.mutants.pods_table import PODS
from tests.mutants.prefixes_table import PREFIXES
from tests.mutants.questions_table import QUESTIONS
from tests.mutants.repeated_calls_table import REPEATED_CALLS
from tests.mutants.repeated_reservations_table import REPEATED_RESERVATIONS
from tests.mutants.rollback_table import ROLLBACK
from tests.mutants.scale_table import SCALE
from tests.mutants.seeds_table import SEEDS
from tests.mutants.snapshots_table import SNAPSHOTS
from tests.mutants.startup_table import STARTUP
from tests.mutants.state_table import STATE
from tests.mutants.store_owners_table import STORE_OWNERS
from tests.mutants.subsets_table import SUBSETS
from tests.mutants.tenants_table import TENANTS
from tests.mutants.truth_table import TRUTH
from tests.mutants.types_table import TYPES

ROUTER: Final = "router_service/core"
REPLICA: Final = "replica_service/core"
CONTROLLER: Final = "controller_service/core"


_CLAIMS_AND_LANES: Final = (
    mutant(
        "a call starts though its deadline has passed",
        REPLICA,
        "return Skip(hi, EXPIRED)",
        "return StartNow(hi, run.deadline)",
        "tests/unit/replica/test_claims.py",
    ),
    mutant(
        "a claim outlives the freshness of its link",
        REPLICA,
        "StartNow(hi, min(run.deadline, link.fresh_until))",
        "StartNow(hi, run.deadline)",
        "tests/unit/replica/test_claims.py",
    ),
    mutant(
        "calls behind one that was taken back are skipped with it",
        REPLICA,
        "return Skip(lo + 1, CANCELLED)",
        "return Skip(hi, CANCELLED)",
        "tests/unit/replica/test_claims.py",
    ),
    mutant(
        "a batch begins though one of its sessions has moved on",
        REPLICA,
        "now < run.link.fresh_until and now < run.deadline and not (run.record is not None and run.record.is_fenced)",
        "now < run.link.fresh_until and now < run.deadline",
        "tests/unit/replica/test_claims.py",
    ),
    mutant(
        "a turn has no end",
        REPLICA,
        "elif now >= turn.over:",
        "elif now >= turn.over + 3600:",
        "tests/unit/replica/test_claims.py tests/unit/replica/test_async_executor.py",
    ),
    mutant(
        "a lane goes on behind a failure of the same run",
        REPLICA,
        "if index > run.failed_at:",
        "if index > run.failed_at + 1:",
        "tests/unit/replica/test_stops.py tests/unit/replica/test_feature_matrix.py",
    ),
    mutant(
        "of two failures of a lane the later one counts",
        REPLICA,
        "call_id if first is None else min(first, call_id)",
        "call_id",
        "tests/unit/replica/test_stops.py",
    ),
    mutant(
        "what is put back goes to the end of its lane",
        REPLICA,
        "lane.runs.appendleft(run)",
        "lane.runs.append(run)",
        "tests/unit/replica/test_scheduler_links.py",
    ),
)

_BATCHES: Final = (
    mutant(
        "a batch is due only when it has waited, not when it is heavy enough",
        REPLICA,
        "gathered.load >= gathered.max_batch_size",
        "gathered.load >= 1e9 * gathered.max_batch_size",
        "tests/unit/replica/test_weighed_batches.py",
    ),
    mutant(
        "a batch waits twice its time",
        REPLICA,
        "return gathered.oldest() + self._control.batch_wait_timeout_s <= now",
        "return gathered.oldest() + 2 * self._control.batch_wait_timeout_s <= now",
        "tests/unit/replica/test_scheduler_batches.py",
    ),
)

_SLOTS: Final = (
    mutant(
        "a lease lasts a moment too long",
        REPLICA,
        "slot if now < slot.expires_at",
        "slot if now <= slot.expires_at",
        "tests/contract/replica/slots/test_leases.py",
    ),
    mutant(
        "a lease has no bound",
        REPLICA,
        "now + min(lease_s, MAX_LEASE_S)",
        "now + lease_s",
        "tests/properties/test_slot_table.py tests/contract/replica/slots",
    ),
    mutant(
        "a slot serves an endpoint that it was not reserved for",
        REPLICA,
        "if isinstance(slot, ReservedSlot) and endpoint and endpoint != slot.endpoint:",
        "if False:",
        "tests/properties/test_slot_table.py tests/contract/replica/slots",
    ),
    mutant(
        "a held slot has no permit between two calls",
        REPLICA,
        "self._permits.in_use += 1\n        self.vacated.append(slot)",
        "pass\n        self.vacated.append(slot)",
        "tests/properties/test_held_slots.py tests/contract/direct/test_streams.py",
    ),
    mutant(
        "a replica that drains prolongs the leases of direct streams",
        REPLICA,
        "if self.prolongs:\n            slot.expires_at = now + slot.lease_s\n        if slot.alarm",
        "if True:\n            slot.expires_at = now + slot.lease_s\n        if slot.alarm",
        "tests/contract/direct/test_streams.py",
    ),
    mutant(
        "a direct call that was lost once is said not to have been executed",
        "slotmesh/client/slots",
        "call.may_have_run = call.may_have_run or not is_refused",
        "call.may_have_run = False",
        "tests/unit/client/test_direct_plan.py tests/properties/test_direct_plan.py",
    ),
    mutant(
        "who comes after the call of a slot hears that it was released",
        REPLICA,
        "SlotState.DONE: failures.SLOT_USED",
        "SlotState.DONE: failures.SLOT_RELEASED",
        "tests/properties/test_slot_table.py tests/contract/replica/slots",
    ),
)

_SESSIONS: Final = (
    mutant(
        "a session that was forgotten comes back at an older epoch",
        REPLICA,
        "epoch < remnant.epoch",
        "epoch > remnant.epoch",
        "tests/unit/replica/test_session_memory.py",
    ),
    mutant(
        "silent sessions are never forgotten",
        REPLICA,
        "elif session.seen_at + self._ttl_s <= now:",
        "elif False:",
        "tests/unit/replica/test_session_memory.py",
    ),
    mutant(
        "a replica that has forgotten calls says that they have not started",
        REPLICA,
        "is_incomplete = bool(wanted) and wanted[0][0] <= session.lost_through",
        "is_incomplete = False",
        "tests/unit/replica/test_session_memory.py",
    ),
    mutant(
        "the router believes a replica that has forgotten the session",
        ROUTER,
        "if found.forgotten:",
        "if False:",
        "tests/unit/router/features/test_sessions.py",
    ),
    mutant(
        "a lost call runs behind later calls that were found, of a key that is not known",
        ROUTER,
        "run.ids[0] < max(self.newest_found.get(key, 0), self.newest_of_any_key)",
        "run.ids[0] < self.newest_found.get(key, 0)",
        "tests/unit/router/features/test_sessions_found_calls.py",
    ),
    mutant(
        "more calls come again than are remembered, and the keys of those that were found are taken for known",
        ROUTER,
        "if self.awaits_calls or self.resent > MAX_RESENT:",
        "if self.awaits_calls:",
        "tests/unit/router/features/test_sessions_found_calls.py",
    ),
    mutant(
        "an earlier attempt may have run, and the failure says no",
        ROUTER,
        "(run.attempt or run.earlier is not Earlier.NONE) and failure.executed is Executed.NO",
        "run.attempt and failure.executed is Executed.NO",
        "tests/unit/router/features/test_sessions.py",
    ),
    mutant(
        "a lane that stops does not ask the replica before a call that was taken back fails",
        ROUTER,
        "return run.options.stop_generation > 0 and is_of_session",
        "return run.options.stop_generation < 0 and is_of_session",
        "tests/unit/router/lifecycle/test_asked_stops.py",
    ),
)

_QUEUES: Final = (
    mutant(
        "flows with little are let in without a bound",
        ROUTER,
        "min(floor, 2 * self.max_calls - self.calls)",
        "floor",
        "tests/unit/router/limits/test_admission.py",
    ),
    mutant(
        "the bound of queued bytes does not hold",
        ROUTER,
        "while fits and size > room:",
        "while False:",
        "tests/unit/router/limits/test_admission.py",
    ),
    mutant(
        "all who were refused come back at the same moment",
        ROUTER,
        "(1 + RETRY_JITTER * (2 * chance - 1))",
        "1",
        "tests/unit/router/limits/test_admission.py",
    ),
    mutant(
        "a flow keeps its turn for ever",
        ROUTER,
        "share.credit -= count",
        "share.credit -= 0",
        "tests/unit/router/queueing/test_fair_queue.py",
    ),
    mutant(
        "a call waits for longer than its backend lets it",
        ROUTER,
        "if run.arrived + limit_s <= step.now:",
        "if False:",
        "tests/unit/router/lifecycle/test_expiry.py",
    ),
    mutant(
        "a deadline that was put off is looked at all the same",
        "slotmesh/calls",
        "            if item is not None and item.alarm == when:\n                item.alarm = inf",
        "            if item is not None:\n                item.alarm = inf",
        "tests/properties/test_wire_deadline_heap.py",
    ),
)

_ROUTING: Final = (
    mutant(
        "shard keys prefer backends with little weight",
        ROUTER,
        "-log(uniform) / weight",
        "-log(uniform) * weight",
        "tests/unit/router/balancers/test_rendezvous.py",
    ),
    mutant(
        "a backend that cannot serve keeps its share of the calls",
        ROUTER,
        "and each.is_serving]",
        "]",
        "tests/unit/router/replicas/test_availability.py tests/properties/test_router_availability.py",
    ),
    mutant(
        "what waits stays at a backend that cannot serve any more",
        ROUTER,
        "if not backend.is_serving and backend.account.calls:",
        "if False:",
        "tests/unit/router/replicas/test_availability.py tests/unit/router/limits/test_policy_changes.py",
    ),
    mutant(
        "calls fail though nobody knows whether replicas are on their way",
        ROUTER,
        "in {Prospect.UNKNOWN, Prospect.COMING}",
        "is Prospect.COMING",
        "tests/unit/router/replicas/test_availability.py",
    ),
    mutant(
        "copies for which there was no room count as failed",
        ROUTER,
        "ShadowOutcome.DROPPED if failure.reason is Reason.NO_SLOT else ShadowOutcome.FAILED",
        "ShadowOutcome.FAILED",
        "tests/unit/router/features/test_shadows.py",
    ),
    mutant(
        "so many replicas of a backend are left alone that the rest cannot carry the load",
        ROUTER,
        "if 2 * self.out > replicas:",
        "if False:",
        "tests/unit/router/replicas/test_ejection.py",
    ),
    mutant(
        "a failing backend is hit by retries without a bound",
        ROUTER,
        "max(FLOOR, SHARE * self._calls.value(now))",
        "max(FLOOR, self._calls.value(now))",
        "tests/unit/router/lifecycle/test_retries.py",
    ),
    mutant(
        "a handler may be as far ahead in each of many calls as in one alone",
        ROUTER,
        "SHARED_BYTES >> level",
        "SHARED_BYTES >> 1",
        "tests/unit/router/limits/test_credits.py",
    ),
    mutant(
        "calls whose payload is under way are passed by others of their key",
        ROUTER,
        "if item in self._incomplete:",
        "if False:",
        "tests/unit/router/features/test_held.py tests/unit/router/features/test_uploads.py",
    ),
)

_CHUNKS_AND_CODEC: Final = (
    mutant(
        "a chunk may repeat what has come",
        "slotmesh",
        "if offset != self.received:",
        "if offset > self.received:",
        "tests/unit/wire/test_assembly.py",
    ),
    mutant(
        "one large payload holds the others up",
        "slotmesh",
        "self.rota.append((owner, total, chunks))",
        "self.rota.appendleft((owner, total, chunks))",
        "tests/unit/router/shell/test_streaming_outbox.py",
    ),
    mutant(
        "any number of large payloads leaves whole in a frame",
        "slotmesh",
        "self._room -= size\n",
        "self._room -= 0\n",
        "tests/contract/client/test_chunks.py",
    ),
    mutant(
        "small calls wait for large chunks",
        "slotmesh",
        "self._small_left = SMALL_CHUNKS",
        "self._small_left = 0",
        "tests/unit/wire/test_assembly.py",
    ),
    mutant(
        "integers wrap where a dtype has no room for them",
        "slotmesh",
        "if are_integers and not _is_same(fitting, array):",
        "if False:",
        "tests/unit/codec/test_arrays_and_lists.py",
    ),
    mutant(
        "a call carries positional and named arguments, and loses some",
        "slotmesh/codec",
        "            if args:\n                raise EncodeError(",
        "            if False:\n                raise EncodeError(",
        "tests/unit/codec/test_arguments.py",
    ),
    mutant(
        "a frame may hold elements without a bound",
        "slotmesh",
        "if elements > MAX_ELEMENTS:",
        "if False:",
        "tests/unit/wire/test_frame_bounds.py",
    ),
)

_ERRORS_AND_SPEC: Final = (
    mutant(
        "the transport has failed, and the call is said not to have run",
        "slotmesh",
        "Executed.NO if code is _Code.UNIMPLEMENTED else Executed.UNKNOWN",
        "Executed.NO",
        "tests/unit/test_status.py",
    ),
    mutant(
        "long messages pass the limit of what travels in an rpc's metadata",
        "slotmesh",
        'return sum(1 if " " <= char <= "~" and char != "%" else 3 *',
        'return sum(1 if " " <= char <= "~" else 1 *',
        "tests/unit/test_status.py",
    ),
    mutant(
        "a backend that fails to start is on its way whenever it is tried again",
        CONTROLLER,
        "and it.started_at < counted_at for it in coming",
        "for it in coming",
        "tests/unit/controller/test_prospects.py",
    ),
    mutant(
        "weights that sum to less than 1 are accepted",
        "slotmesh",
        "if abs(total - 1.0) > WEIGHT_TOLERANCE:",
        "if total - 1.0 > WEIGHT_TOLERANCE:",
        "tests/unit/controller/test_spec_document.py",
    ),
    mutant(
        "port 0 is an address",
        "slotmesh",
        "0 < int(port) <= _MAX_PORT",
        "0 <= int(port) <= _MAX_PORT",
        "tests/unit/test_units.py",
    ),
    mutant(
        "a share that is given twice is taken as the last one says",
        "slotmesh/cli",
        "if name in shares:",
        "if False:",
        "tests/unit/cli/test_shares.py",
    ),
    mutant(
        "a command that could not do what it was asked exits with status 0",
        "slotmesh/cli",
        "raise typer.Exit(failure.exit_code) from failure",
        "raise typer.Exit(0) from failure",
        "tests/unit/cli tests/e2e/test_cli_commands.py",
    ),
)

_CONTROLLER: Final = (
    mutant(
        "old replicas are drained before the new ones are ready",
        CONTROLLER,
        "is_replaced = available >= wanted or (",
        "is_replaced = available >= 0 or (",
        "tests/properties/test_controller_rollouts.py tests/contract/controller/test_launching.py",
    ),
    mutant(
        "processes that drain do not count, so that a rollout has more of them than it may",
        CONTROLLER,
        "most -= len(groups.ending)",
        "most -= 0",
        "tests/properties/test_controller_rollouts.py",
    ),
    mutant(
        "partitions are given away at the start, though routers may bring the table of an earlier generation",
        CONTROLLER,
        "left_s = started_at + TABLE_WITHIN_S - now",
        "left_s = 0.0",
        "tests/contract/controller/test_generations.py",
    ),
    mutant(
        "departures are listed for ever",
        CONTROLLER,
        "it.left_at > now - KEEP_S",
        "True",
        "tests/unit/controller/test_roster.py",
    ),
    mutant(
        "a partition is given to whoever has the most",
        CONTROLLER,
        "(held[it.owner] - it.share * PARTITIONS, rank)",
        "(it.share * PARTITIONS - held[it.owner], rank)",
        "tests/unit/controller/test_reconcile.py tests/properties/test_controller_partitions.py",
    ),
    mutant(
        "a new owner gets its partition at the epoch of the old one",
        CONTROLLER,
        "owner_of[number] = owner\n            epochs[number] = max(epochs[number], epoch_floor) + 1",
        "owner_of[number] = owner\n            epochs[number] = max(epochs[number], epoch_floor)",
        "tests/properties/test_controller_partitions.py",
    ),
    mutant(
        "a member that is silent is looked at too late",
        CONTROLLER,
        "self._check(member, now + self.lease_s)",
        "self._check(member, now + 2 * self.lease_s)",
        "tests/properties/test_controller_liveness.py",
    ),
    mutant(
        "a hung replica counts as ended before its process was reaped",
        CONTROLLER,
        "record = replace(known, is_given_up=True,",
        "record = replace(known, is_given_up=True, gone=True,",
        "tests/properties/test_controller_endings.py",
    ),
    mutant(
        "replicas that an earlier life of the controller has started are drained while nothing is configured",
        CONTROLLER,
        "is_unsaid = launches and not desired.configured_at",
        "is_unsaid = False",
        "tests/unit/controller/test_launches.py",
    ),
    mutant(
        "replicas are suspect to routers before they have come back to a new controller",
        CONTROLLER,
        "suspect=replica.suspect_since is not None and replica.has_attached",
        "suspect=replica.suspect_since is not None",
        "tests/unit/controller/test_suspect_routes.py",
    ),
    mutant(
        "pruning deletes nothing",
        CONTROLLER,
        "sorted(there.keys() - wanted.keys()) if prune else []",
        "[]",
        "tests/e2e/test_cli_commands.py tests/contract/controller/test_operators.py",
    ),
)

_CLIENT: Final = (
    mutant(
        "an answer that comes twice is taken twice",
        "slotmesh/client",
        "if part.left and part.answered is not None and not part.answered[at + index]:",
        "if True:",
        "tests/unit/client/test_pending.py",
    ),
    mutant(
        "a lane that is new begins at a generation that another lane has seen fail",
        "slotmesh/client",
        "self.generation = generations.newest_failed + 1",
        "self.generation = 1",
        "tests/unit/client/test_stop.py tests/contract/client/test_stop.py",
    ),
    mutant(
        "in a lane that stops the client says too soon that a call has failed",
        "slotmesh/client",
        "STOP_SLACK_S if part.spec.stop_generation else SLACK_S",
        "SLACK_S",
        "tests/contract/client/test_overdue.py",
    ),
    mutant(
        "a lease is renewed after it has ended",
        "slotmesh/client",
        "min(abs(self.ends - now), self._ttl_s) / 3",
        "min(abs(self.ends - now), self._ttl_s) * 3",
        "tests/unit/client/test_slot_renewal.py",
    ),
)

_STORE: Final = (
    mutant(
        "a state file: a commit is not one transaction",
        "controller_service/store",
        'connection.execute("COMMIT" if is_ours else "ROLLBACK")',
        "pass",
        "tests/contract/controller/test_state_crash.py",
    ),
    mutant(
        "a state file: a controller whose lock was taken from it goes on writing",
        "controller_service/store",
        "return written.rowcount == 1",
        "return True",
        "tests/contract/controller/test_state_refusals.py",
    ),
    mutant(
        "a state file: rows are not checked",
        "controller_service/store",
        "if checksum != checksum_of(kind, name, text):",
        "if False:",
        "tests/contract/controller/test_state_refusals.py",
    ),
    mutant(
        "a state file: after an error what is in memory counts",
        "controller_service/store",
        "if head.revision != self.desired.revision:",
        "if False:",
        "tests/contract/controller/test_state_disk.py tests/contract/controller/test_state_errors.py",
    ),
    mutant(
        "a state file: a start takes no revision of its own",
        "controller_service/core",
        "return replace(self, revision=self.revision + 1, terms=terms)",
        "return replace(self, terms=terms)",
        "tests/contract/controller/test_lineage.py tests/properties/test_controller_store.py",
    ),
    mutant(
        "what an earlier run has launched is launched again at once",
        "controller_service/core",
        "return replica.suspect_since is None or now < replica.suspect_since + RETURN_WITHIN_S",
        "return False",
        "tests/contract/controller/test_lineage.py",
    ),
    mutant(
        "a file that is applied again brings back what it has not changed",
        "controller_service/core",
        "if wanted == base:",
        "if False:",
        "tests/unit/controller/test_merging.py",
    ),
)

MUTANTS: Final = (
    *_CLAIMS_AND_LANES,
    *_BATCHES,
    *_SLOTS,
    *_SESSIONS,
    *_QUEUES,
    *_ROUTING,
    *_CHUNKS_AND_CODEC,
    *_ERRORS_AND_SPEC,
    *_CONTROLLER,
    *_STORE,
    *_CLIENT,
    *BALANCERS,
    *DEPLOY,
    *DISCOVERY,
    *EDGE,
    *EDGES,
    *LAST_QUESTIONS,
    *FENCE,
    *HOLD,
    *ROLLBACK,
    *STORE_OWNERS,
    *ETCD,
    *FINISH,
    *ISLANDS,
    *HTTP_CONNECTION,
    *TYPES,
    *TENANTS,
    *SNAPSHOTS,
    *SCALE,
    *SEEDS,
    *STATE,
    *CLIENT,
    *CLIENTS,
    *HTTP,
    *GUARDS,
    *OPERATOR,
    *PODS,
    *DEVICES,
    *PLACEMENT,
    *QUESTIONS,
    *REPEATED_CALLS,
    *REPEATED_RESERVATIONS,
    *NET_CONTROL,
    *NETB,
    *STARTUP,
    *SUBSETS,
    *AFFINITY,
    *MODELS,
    *PREFIXES,
    *BROADCASTS,
    *TRUTH,
)
