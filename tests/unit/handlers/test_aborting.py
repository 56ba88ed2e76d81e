"""`slotmesh.abort`: what it raises, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import slotmesh
from slotmesh.errors import Executed, Reason
from slotmesh.handlers.rpc_context import MAX_ABORT_METADATA_BYTES
from slotmesh.status import STATUS_NUMBERS


@pytest.mark.parametrize(("name", "number"), STATUS_NUMBERS.items())
def test_every_status_but_ok_can_be_chosen_by_name_and_by_number(name: str, number: int) -> None:
    for code in (name, number):
        with pytest.raises(slotmesh.HandlerError) as raised:
            slotmesh.abort(code, "not today", {"until": "tomorrow"})
        error = raised.value
        assert (str(error), error.status, error.executed) == ("not today", name, Executed.YES)
        assert (error.reason, error.metadata) == (Reason.HANDLER_ERROR, {"until": "tomorrow"})


def test_names_of_files_that_are_no_utf8_change_no_status() -> None:
    with pytest.raises(slotmesh.HandlerError) as raised:
        slotmesh.abort("NOT_FOUND", "no such file", {"path": "/data/caf\udce9.txt"})
    assert (raised.value.status, raised.value.metadata) == ("NOT_FOUND", {"path": "/data/caf?.txt"})


def test_there_are_sixteen_of_them() -> None:
    assert sorted(STATUS_NUMBERS.values()) == list(range(1, 17))


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("OK", "fine"), ValueError, "code 'OK': a call that is well returns its result"),
        ((0, "fine"), ValueError, "code 0: a call that is well returns its result"),
        (("NOTFOUND", "x"), ValueError, r"code 'NOTFOUND' is no gRPC status; it is one of .*NOT_FOUND \(5\)"),
        (("not_found", "x"), ValueError, "code 'not_found' is no gRPC status"),
        ((17, "x"), ValueError, "code 17 is no gRPC status"),
        ((-1, "x"), ValueError, "code -1 is no gRPC status"),
        ((True, "x"), TypeError, "code must be the name or the number of a gRPC status, got True"),
        ((5.0, "x"), TypeError, "got 5.0"),
        ((None, "x"), TypeError, "got None"),
        (("NOT_FOUND", b"x"), TypeError, "message must be a str, got b'x'"),
        (("NOT_FOUND", "x", ["a"]), TypeError, "metadata must be a mapping of str to str"),
        (("NOT_FOUND", "x", {"a": 1}), TypeError, "metadata must be a mapping of str to str, got 'a': 1"),
        (("NOT_FOUND", "x", {"executed": "no"}), ValueError, "metadata: the key 'executed' is reserved"),
        (("NOT_FOUND", "x", {"": "no"}), ValueError, "metadata: the key '' is reserved"),
        (
            ("NOT_FOUND", "x", {"a": "ä" * MAX_ABORT_METADATA_BYTES}),
            ValueError,
            "metadata has 8193 bytes; at most 4096",
        ),
    ],
)
def test_wrong_uses_are_told_where_they_are_written(arguments: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        slotmesh.abort(*arguments)
