"""Mutants of idle sessions, and of what handlers are told of their keys."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CLIENT: Final = "slotmesh/client"
REPLICA: Final = "replica_service/core"
SHELL: Final = "replica_service/shell"
HOLDING: Final = "tests/unit/replica/test_key_holding.py"
PULSES: Final = "tests/unit/client/test_heartbeats.py"

_HEARTBEATS: Final = (
    mutant(
        "the first call after a rest counts no silence",
        CLIENT,
        "elif self.pulse.is_resting:",
        "elif False:",
        "tests/contract/client/test_sessions.py",
    ),
    mutant(
        "a stream rests while a call is unanswered",
        CLIENT,
        "self._idle_beats = 0 if self._awaits_answers() else self._idle_beats + 1",
        "self._idle_beats += 1",
        PULSES,
    ),
    mutant(
        "a stream rests though its newest heartbeat was not answered",
        CLIENT,
        "self._idle_beats >= IDLE_BEATS and not self._quiet_beats",
        "self._idle_beats >= IDLE_BEATS",
        PULSES,
    ),
    mutant(
        "a stream rests at a router that did not allow it",
        CLIENT,
        "if self._rest_s and self._idle_beats",
        "if self._idle_beats",
        PULSES,
    ),
    mutant(
        "sessions that lost the same router beat together",
        CLIENT,
        "self._rest_s * random.uniform(0.8, 1.0)",
        "self._rest_s",
        PULSES,
    ),
    mutant(
        "a stream that may be silent for a short time only is cut while it rests",
        "slotmesh/streams",
        "min(timeout_s / HEARTBEATS_PER_TIMEOUT, IDLE_HEARTBEAT_S)",
        "IDLE_HEARTBEAT_S",
        "tests/unit/runtime/test_edge_limits.py",
    ),
)

_KEYS: Final = (
    mutant(
        "calls of keys start before the handler was told of them",
        REPLICA,
        "elif run.state is _UPLOADING or (keys.is_on and not keys.may_start(lane, run, commands)):",
        "elif run.state is _UPLOADING or (keys.is_on and keys.may_start(lane, run, commands) is None):",
        HOLDING,
    ),
    mutant(
        "calls that end a second time free permits once more",
        REPLICA,
        "if count > run.left - (run.hi - run.lo):\n        _report(run, CallEvent.EXECUTED, commands)",
        "if False:\n        _report(run, CallEvent.EXECUTED, commands)",
        "tests/unit/replica/test_call_states.py",
    ),
    mutant(
        "a run that arrives a second time is accepted again",
        REPLICA,
        "run.state = _ON_ACCEPTED[run.state]",
        "run.state = _ON_ACCEPTED.get(run.state, run.state)",
        "tests/unit/replica/test_call_states.py",
    ),
    mutant(
        "a loss is told while calls of its keys run",
        REPLICA,
        "holding.phase is HoldingPhase.LEAVING and not holding.running",
        "holding.phase is HoldingPhase.LEAVING",
        HOLDING,
    ),
    mutant(
        "the next owner does not wait until the handler was told of the loss",
        REPLICA,
        " and not self._state.keys.holds(endpoint, partition)",
        "",
        HOLDING,
    ),
    mutant(
        "a fence leaves out what the handler still holds",
        REPLICA,
        "busy = self._state.keys.by_endpoint()",
        "busy: dict[str, set[int]] = {}",
        HOLDING,
    ),
    mutant(
        "a partition that comes back keeps its older epoch",
        REPLICA,
        "if run.owner_epoch <= holding.epoch:",
        "if True:",
        HOLDING,
    ),
    mutant(
        "what is given up while it is gained is never lost",
        REPLICA,
        "holding.is_given_up = True",
        "pass",
        HOLDING,
    ),
    mutant(
        "a drain ends before handlers were told of their losses",
        REPLICA,
        "return is_empty and self._state.keys.is_settled",
        "return is_empty",
        HOLDING,
    ),
    mutant(
        "a hook of keys that hangs holds up their calls for ever",
        SHELL,
        "async with asyncio.timeout(self._timeout_s):\n                outcome = await asyncio.shield(run.ended)",
        "async with asyncio.timeout(None):\n                outcome = await asyncio.shield(run.ended)",
        "tests/unit/replica/test_key_hooks.py",
    ),
    mutant(
        "losses and gains of keys share a call of a hook",
        SHELL,
        "(self._due[0].is_gain, self._due[0].endpoint) == (first.is_gain, first.endpoint)",
        "self._due[0].endpoint == first.endpoint",
        "tests/unit/replica/test_key_hooks.py",
    ),
    mutant(
        "a call without a key has a fencing token",
        SHELL,
        "owner_epoch=run.owner_epoch if run.ordering_key else None",
        "owner_epoch=run.owner_epoch",
        "tests/testing/test_key_hooks.py",
    ),
    mutant(
        "the store of the example takes changes of an owner of before",
        "examples/carts",
        " AND owner_epoch <= ?",
        " AND ? > 0",
        "tests/unit/examples/test_carts.py",
    ),
    mutant(
        "the store of the example loses updates",
        "examples/carts",
        " WHERE user = ? AND version = ? AND",
        " WHERE user = ? AND ? >= 0 AND",
        "tests/unit/examples/test_carts.py",
    ),
)

STATE: Final = (*_HEARTBEATS, *_KEYS)
