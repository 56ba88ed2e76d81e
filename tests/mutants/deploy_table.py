"""Mutants of what operators change: what a rollback undoes, who gets traffic, and requests that are repeated."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_CLI: Final = "slotmesh/cli"
_CONTROLLER: Final = "controller_service"
_OPERATIONS: Final = "tests/unit/controller/test_operations.py"
_ANSWERED: Final = "tests/unit/controller/test_answered_requests.py"
_CHANGES: Final = "tests/contract/controller/test_changes.py"
_LOST: Final = "tests/contract/cli/test_lost_replies.py"
_READINESS: Final = "tests/unit/controller/test_readiness.py"
_REPEATED: Final = "tests/contract/controller/test_repeated_requests.py"
_SHIFT_ROLLBACK: Final = "tests/unit/controller/test_shift_rollback.py"

DEPLOY: Final = (
    mutant(
        "the page token of another query is taken",
        _CONTROLLER,
        "if token[:_DIGEST_BYTES] == _digest(request):",
        "if token[:_DIGEST_BYTES]:",
        "tests/unit/controller/test_replica_pages.py",
    ),
    mutant(
        "the etag of a resource is compared only if it is gone",
        _CONTROLLER,
        "        if present != etag:\n",
        "        if present != etag and not present:\n",
        _CHANGES,
    ),
    mutant(
        "a rollback undoes the newest change whichever was named",
        _CONTROLLER,
        "    if revision not in {it.revision for it in newest}:\n",
        "    if revision > newest[-1].revision:\n",
        "tests/contract/controller/test_history.py",
    ),
    mutant(
        "a rollback after a shift undoes its last step",
        _CONTROLLER,
        "    if newest.origin.part_of:\n        return tuple(",
        "    if False:\n        return tuple(",
        _SHIFT_ROLLBACK,
    ),
    mutant(
        "a rollback deploys again what was rolled back",
        _CONTROLLER,
        "        if not is_roll_back(record):\n            return history",
        "        if True:\n            return history",
        _SHIFT_ROLLBACK,
    ),
    mutant(
        "a take-back belongs to any change before it",
        _CONTROLLER,
        "return history[-count:] if back <= subjects else (newest,)",
        "return history[-count:]",
        _SHIFT_ROLLBACK,
    ),
    mutant(
        "a rollback after a shift undoes what others have changed during it",
        _CONTROLLER,
        "return change == desired.history[-len(change) :] and weights",
        "return weights",
        _SHIFT_ROLLBACK,
    ),
    mutant(
        "a shift whose first steps are not kept is undone to its middle",
        _CONTROLLER,
        "if shift is not None and shift.change_id == change[0].origin.part_of:",
        "if False:",
        _SHIFT_ROLLBACK,
    ),
    mutant(
        "the state file forgets of which shift a revision is a part",
        _CONTROLLER,
        "RecordForm(ChangeOrigin, is_open=True)",
        'RecordForm(ChangeOrigin, outside=("part_of",), is_open=True)',
        "tests/contract/controller/test_shift_restart.py",
    ),
    mutant(
        "traffic for a backend without a ready replica is accepted although the request asks for the check",
        _CONTROLLER,
        "            if requires_ready and wanted.traffic is not None:\n                self.require_ready(",
        "            if False:\n                self.require_ready(",
        _CHANGES,
    ),
    mutant(
        "a shift to a backend without a ready replica begins although the request asks for the check",
        _CONTROLLER,
        "            if requires_ready:\n                self._configurator.require_ready(",
        "            if False:\n                self._configurator.require_ready(",
        _CHANGES,
    ),
    mutant(
        "a request that does not ask for it is checked for ready replicas",
        _CONTROLLER,
        "self._apply_endpoint(edit, terms, requires_ready=request.require_ready)",
        "self._apply_endpoint(edit, terms, requires_ready=True)",
        _CHANGES,
    ),
    mutant(
        "a backend that is scaled to zero gets no traffic",
        _CONTROLLER,
        "if is_idle or any(",
        "if any(",
        _READINESS,
    ),
    mutant(
        "right after a start no backend is ready",
        _CONTROLLER,
        "since is not None and now < since + RETURN_WITHIN_S",
        "False",
        _READINESS,
    ),
    mutant(
        "a replica that has not come back for long counts as ready",
        _CONTROLLER,
        "since is not None and now < since + RETURN_WITHIN_S",
        "since is not None",
        _READINESS,
    ),
    mutant(
        "traffic cannot be taken away from a backend that is not ready",
        _CONTROLLER,
        "if weight - old.get(name, 0.0) > SAME",
        "if weight > SAME",
        f"{_READINESS} {_CHANGES}",
    ),
    mutant(
        "a request that is repeated is carried out again",
        _CONTROLLER,
        "    if known.digest == asked.digest:\n        raise AlreadyAnswered(known.reply)",
        "    if known.digest == asked.digest:\n        return",
        _REPEATED,
    ),
    mutant(
        "an id names any request",
        _CONTROLLER,
        "    if known.digest == asked.digest:\n        raise AlreadyAnswered(known.reply)",
        "    if True:\n        raise AlreadyAnswered(known.reply)",
        _REPEATED,
    ),
    mutant(
        "of two repeated requests at the same time both are carried out",
        _CONTROLLER,
        "        for _ in range(_ATTEMPTS):\n            desired = self._store.read()\n"
        "            require_new(desired.answers, self._state.clock.time_of_day())",
        "        require_new(self._store.read().answers, self._state.clock.time_of_day())\n"
        "        for _ in range(_ATTEMPTS):\n            desired = self._store.read()",
        _REPEATED,
    ),
    mutant(
        "the next controller does not know which requests were carried out",
        _CONTROLLER,
        '    RowKind.ANSWER: StoredSection("answers", ANSWER, order=attrgetter("time_s")),',
        "",
        _REPEATED,
    ),
    mutant(
        "a state that was adopted is not known to the next controller",
        _CONTROLLER,
        "        answers=desired.answers,\n",
        "",
        _REPEATED,
    ),
    mutant(
        "the next controller does not carry out an order for a replica that attaches to it",
        _CONTROLLER,
        "        if order is not None:\n            self._state.apply_to_replica(",
        "        if False:\n            self._state.apply_to_replica(",
        _REPEATED,
    ),
    mutant(
        "the next controller does not carry out an order for a replica that it knows",
        _CONTROLLER,
        "        self._carry_out(store.read().orders.values())\n",
        "",
        _REPEATED,
    ),
    mutant(
        "a replica that was forgotten before a table named it attaches to the next controller",
        _CONTROLLER,
        "desired.roster.has_departed(owner) or (order is not None and order.is_end)",
        "desired.roster.has_departed(owner)",
        _REPEATED,
    ),
    mutant(
        "an order for a process drains the next one of its name",
        _CONTROLLER,
        'if known is None or order.owner.incarnation not in {"", known.incarnation}:',
        "if known is None:",
        _REPEATED,
    ),
    mutant(
        "a repeated request that has changed nothing is carried out",
        _CONTROLLER,
        "if terms.validate_only or (plan.changes_nothing and signed.answer is None):",
        "if terms.validate_only or plan.changes_nothing:",
        _REPEATED,
    ),
    mutant(
        "an operation is done before routers had the time to attach again",
        _CONTROLLER,
        'pending = [] if facts.is_settled else ["routers: may not',
        'pending = [] if True else ["routers: may not',
        _OPERATIONS,
    ),
    mutant(
        "a rollout is done before routers reach its replicas",
        _CONTROLLER,
        "if any(map(it.lacks, owners))]",
        "if False]",
        _OPERATIONS,
    ),
    mutant(
        "a rollout that was replaced is waited for as if it were the present one",
        _CONTROLLER,
        "if template_of(asked) != template_of(backend):\n        return",
        "if False:\n        return",
        _OPERATIONS,
    ),
    mutant(
        "a rollout that fails is waited for although there is nothing to go back to",
        _CONTROLLER,
        "if progress.trouble and facts.launches and not _has_way_back(record):",
        "if False:",
        _OPERATIONS,
    ),
    mutant(
        "settings of a file that were rolled back are not reported",
        _CONTROLLER,
        "        if fields:\n            yield RolledBackSettings",
        "        if False:\n            yield RolledBackSettings",
        "tests/unit/controller/test_rollouts.py",
    ),
    mutant(
        "a command ends its wait when its controller leads no more",
        _CLI,
        "if not ((is_lost(error) or leads_no_more) and await",
        "if not (is_lost(error) and await",
        "tests/contract/cli/test_waits.py",
    ),
    mutant(
        "rpcs that wait for operations are not counted",
        _CONTROLLER,
        ".within(max_waits, floor=1)",
        ".within(max_waits + 1, floor=1)",
        "tests/contract/controller/test_operations.py",
    ),
    mutant(
        "one caller takes all waits for operations",
        _CONTROLLER,
        "has_share=bool(caller)",
        "has_share=False",
        "tests/contract/controller/test_operations.py",
    ),
    mutant(
        "rpcs that wait for operations find what was before a change",
        _CONTROLLER,
        "            or facts.desired is not desired\n",
        "",
        "tests/contract/controller/test_operations.py",
    ),
    mutant(
        "an rpc that waits for operations goes on at a controller that leads no more",
        _CONTROLLER,
        "            if self._is_closed:\n                text",
        "            if False:\n                text",
        "tests/contract/controller/test_operations.py",
    ),
    mutant(
        "a drain of a process that nothing is known of is done",
        _CONTROLLER,
        "    if not is_known:\n",
        "    if False:\n",
        _OPERATIONS,
    ),
    mutant(
        "a shift that a request ends is named as an operation",
        _CONTROLLER,
        "for it in plan.change.put_shifts if it.is_under_way)",
        "for it in plan.change.put_shifts)",
        "tests/unit/controller/test_effects_of_changes.py",
    ),
    mutant(
        "a long reply is kept as a whole",
        _CONTROLLER,
        "if len(content) > MAX_REPLY_BYTES:",
        "if False:",
        _REPEATED,
    ),
    mutant(
        "requests are remembered for ever",
        _CONTROLLER,
        "return now_s - answer.time_s > KEPT_S",
        "return False",
        _ANSWERED,
    ),
    mutant(
        "as many requests are remembered as are made",
        _CONTROLLER,
        "if len(kept) == MAX_ANSWERS or size",
        "if size",
        _ANSWERED,
    ),
    mutant(
        "a command whose reply is lost does not ask again",
        _CLI,
        "or (is_lost(error) and await self._reconnect())):",
        "):",
        _LOST,
    ),
    mutant(
        "a command ends at a controller that stands by and names the leader",
        _CLI,
        "                if await self._follow(_named_leader(error)):",
        "                if False:",
        "tests/e2e/test_standby.py",
    ),
    mutant(
        "a repeated request of a command has another id",
        _CLI,
        "            standing = await self._known_standing()\n",
        "            request.request_id, standing = new_id(), await self._known_standing()\n",
        _LOST,
    ),
)
