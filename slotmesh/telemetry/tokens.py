"""The metrics of bearer tokens: those that were refused, and files that could not be read again."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from slotmesh.security.tokens import TokenProblem, Tokens
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import observe_counter


def observe_tokens(meter: Meter, tokens: Tokens) -> None:
    """Registers them."""
    observe_counter(
        meter, names.TOKEN_REFUSALS, lambda: {(each.value,): tokens.refusals[each] for each in TokenProblem}
    )
    observe_counter(meter, names.TOKEN_RELOAD_FAILURES, lambda: {(): tokens.failed_reloads})
