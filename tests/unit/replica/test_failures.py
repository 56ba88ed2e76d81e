"""The failures of the replica's core, as callers read them."""

from __future__ import annotations

from replica_service.core.failures import no_such_method


def test_a_method_that_does_not_exist_is_named_with_the_closest_one_and_all_others() -> None:
    failure = no_such_method("helo", ["hello", "", "stop"])
    assert failure.message == "the handler has no method 'helo'; did you mean hello? It has __call__, hello, stop"
    assert failure.metadata["field"] == "options.method"
    assert no_such_method("x", ["hello"]).message == "the handler has no method 'x'; it has hello"
