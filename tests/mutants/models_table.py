"""Mutants of models that handlers load by id: which one is unloaded, which replica gets a model's calls."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

HANDLERS: Final = "slotmesh/handlers"
ROUTER: Final = "router_service/core/preferences"
PLACES: Final = "tests/unit/handlers/test_model_places.py"
ROUTED: Final = "tests/unit/router/preferences/test_models.py"

MODELS: Final = (
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
        "if not self._unloading and self._is_stuck(uses):",
        "if False:",
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
        "tried.sort(key=lambda each: model not in self._reported.get(each, _NONE))",
        "pass",
        ROUTED,
    ),
)
