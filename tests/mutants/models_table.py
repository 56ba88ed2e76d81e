"""Mutants of models that handlers load by id: which one is unloaded, which replica gets a model's calls."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

HANDLERS: Final = "slotmesh/handlers"
ROUTER: Final = "router_service/core/preferences"
PLACES: Final = "tests/unit/handlers/test_model_places.py"
WAITS: Final = "tests/unit/handlers/test_multiplexed_waits.py"
ROUTED: Final = "tests/unit/router/preferences/test_models.py"
SENDER: Final = "router_service/core/lifecycle"
QUEUES: Final = "router_service/core/queueing"
OVERTAKING: Final = "tests/unit/router/lifecycle/test_overtaking.py"
DELAYS: Final = "tests/unit/router/lifecycle/test_delays.py"
DELAYED: Final = "tests/properties/test_router_delays.py"
FAIR: Final = "tests/properties/test_router_fair_queue.py"
PROMPTS: Final = "tests/unit/router/preferences/test_prefixes.py"

MODELS: Final = (
    mutant(
        "calls overtake one whose time ends until it fails",
        SENDER,
        "if left <= 0 or 2 * (step.now - head.arrived) >= ends_at - head.arrived:",
        "if left <= 0:",
        OVERTAKING,
    ),
    mutant(
        "calls that get models of two methods in opposite orders wait for each other",
        HANDLERS,
        "any(it in stuck for it in each.awaited)",
        "self in each.awaited",
        PLACES,
    ),
    mutant(
        "a call is refused for a pool whose load has just failed, which has a free place",
        HANDLERS,
        "return len(pool._places) < pool._most or not all(",
        "return not all(",
        PLACES,
    ),
    mutant(
        "a free place is for a call that was cancelled",
        HANDLERS,
        "            elif not is_woken:  # it was cancelled meanwhile: the place is for the next one\n",
        "            elif False:\n",
        WAITS,
    ),
    mutant(
        "a free place wakes all calls that wait",
        HANDLERS,
        "        if self._waiting and self._places.has_room:\n",
        "        while self._waiting:\n",
        WAITS,
    ),
    mutant(
        "a model that a call uses is unloaded",
        HANDLERS,
        "return not self.holders and self.is_loaded",
        "return self.is_loaded",
        PLACES,
    ),
    mutant(
        "a use does not make a model younger",
        HANDLERS,
        "            self._places.move_to_end(model_id)\n",
        "",
        PLACES,
    ),
    mutant(
        "calls that wait for each other's models wait for good",
        HANDLERS,
        "if self in (stuck := self._stuck_pools(uses)):",
        "if stuck := []:",
        PLACES,
    ),
    mutant(
        "a replica without a free place for a model loads it",
        ROUTER,
        "return not replica.max_models or used < replica.max_models",
        "return True",
        ROUTED,
    ),
    mutant(
        "models that were sent to a replica are remembered without end",
        ROUTER,
        "if len(sent) > (replica.max_models or _SENT_AT_LEAST):",
        "if False:",
        ROUTED,
    ),
    mutant(
        "a replica that fails to load a model keeps its calls from those that have it",
        ROUTER,
        "loaded = [each for each in tried if model in self._reported.get(each, _NONE)]",
        "loaded = tried",
        ROUTED,
    ),
    mutant(
        "a call is sent where its model has to be loaded though it ends before that",
        ROUTER,
        "if run.deadline - now >= load_s:",
        "if run.deadline - now >= 0.0:",
        f"{DELAYS} {DELAYED}",
    ),
    mutant(
        "the time of loads counts as the time of calls",
        "router_service/core/limits",
        "        if is_cold:\n            return\n        off_s",
        "        off_s",
        f"{DELAYS} {DELAYED}",
    ),
    mutant(
        "a call waits for a replica of its model until that has room",
        ROUTER,
        "until = min(run.delayed_at + load_s, run.arrived + (ends_at - run.arrived) / 2)",
        "until = run.arrived + (ends_at - run.arrived) / 2",
        f"{DELAYS} {DELAYED}",
    ),
    mutant(
        "permits stay free while calls wait for their models, whatever that costs",
        ROUTER,
        "if self._spent >= loads * load_s - _SLACK_S:",
        "if False:",
        f"{DELAYS} {DELAYED}",
    ),
    mutant(
        "each event looks at all calls that wait for their models",
        ROUTER,
        "if until <= now or self._delayed >= MAX_DELAYED:",
        "if until <= now:",
        DELAYS,
    ),
    mutant(
        "calls with an SLO wait behind one that waits for its model",
        QUEUES,
        "        return not self._stated\n",
        "        return True\n",
        f"{DELAYS} {DELAYED}",
    ),
    mutant(
        "calls of other flows wait behind one that waits for its model",
        SENDER,
        "        queue.set_aside()\n        return True\n",
        "        return False\n",
        f"{DELAYS} {DELAYED}",
    ),
    mutant(
        "a flow that was passed over loses its turn",
        QUEUES,
        "            line.appendleft(share)\n",
        "            pass\n",
        f"{DELAYS} {DELAYED}",
    ),
    mutant(
        "a freed replica gets the oldest call whatever waits behind it",
        ROUTER,
        "        return replica in replicas\n",
        "        return True\n",
        OVERTAKING,
    ),
    mutant(
        "a waiting call is overtaken without end",
        SENDER,
        "OVERTAKING * backend.candidates) - queue.overtakers(head)",
        "OVERTAKING * backend.candidates)",
        OVERTAKING,
    ),
    mutant(
        "overtaking calls take no turn of their flow",
        SENDER,
        "        queue.overtook(head, run, count)\n        queue.served(count)\n",
        "        queue.overtook(head, run, count)\n",
        OVERTAKING,
    ),
    mutant(
        "calls behind one that is due overtake it",
        QUEUES,
        "if (run.due, run.seq) <= first]",
        "]",
        f"{OVERTAKING} {FAIR}",
    ),
    mutant(
        "calls that were overtaken hide those behind them",
        QUEUES,
        "            self.runs.remove(run)\n",
        "            pass\n",
        OVERTAKING,
    ),
    mutant(
        "look-ahead reads all prompts that wait in one event",
        ROUTER,
        "if self._prompts.left < LEFT_FOR_PICKS and",
        "if self._prompts.left < 0 and",
        PROMPTS,
    ),
)
