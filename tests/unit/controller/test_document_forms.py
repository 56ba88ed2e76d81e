"""Forms of stored documents: what is missing, unknown or of another type is refused with its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from controller_service.core.partition_owners import Incarnation
from controller_service.core.roster import ListedIncarnation
from controller_service.store.documents import MEMBER
from controller_service.store.forms import BadDocument, RecordForm


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Inner:
    number: int
    raw: bytes = b""


@dataclass(frozen=True)
class Outer:
    name: str
    share: float
    colour: Colour
    owner: Incarnation
    inner: tuple[Inner, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    maybe: str = "default"


FORM = RecordForm(Outer, outside=("name",), absent=("maybe",))
VALUE = Outer(
    name="n",
    share=1,
    colour=Colour.BLUE,
    owner=Incarnation("r", "i"),
    inner=(Inner(1, b"\x00"), Inner(2)),
    weights={"a": 0.5},
    maybe="m",
)
DOCUMENT = {
    "share": 1,
    "colour": "blue",
    "owner": ["r", "i"],
    "inner": [{"number": 1, "raw": "AA=="}, {"number": 2, "raw": ""}],
    "weights": {"a": 0.5},
    "maybe": "m",
}


def test_a_record_is_written_field_by_field_and_read_again() -> None:
    assert FORM.write(VALUE) == DOCUMENT
    assert FORM.read(DOCUMENT, name="n") == VALUE


def test_what_may_be_missing_has_its_default() -> None:
    document = {key: it for key, it in DOCUMENT.items() if key != "maybe"}
    assert FORM.read(document, name="n").maybe == "default"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": None}, "has no share"),
        ({"colour": "green"}, "colour: this version of slotmesh knows no 'green'"),
        ({"owner": ["r"]}, r"owner: \['r'\] is no incarnation"),
        ({"share": True}, "share: True is no number"),
        ({"inner": [{"number": "1", "raw": ""}]}, "inner: number: '1' is no integer"),
        ({"inner": {}}, "inner: must be a list"),
        ({"inner": [{"number": 1, "raw": "?"}]}, "inner: raw: must be base64"),
        ({"weights": {"a": "1"}}, "weights: a: '1' is no number"),
        ({"shape": 1}, "this version of slotmesh knows no shape"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadDocument, match=f"^{message}"):
        FORM.read({**DOCUMENT, **change}, name="n")


def test_a_document_that_is_no_object_is_refused() -> None:
    with pytest.raises(BadDocument, match="must be a JSON object"):
        FORM.read([], name="n")


@dataclass(frozen=True)
class Grown:
    number: int
    since_then: str = ""


def test_a_newer_field_is_left_out_while_it_is_empty_so_that_an_older_version_reads_the_document() -> None:
    form = RecordForm(Grown, newer=("since_then",))
    assert form.write(Grown(1)) == {"number": 1}
    assert form.read({"number": 1}) == Grown(1)
    assert form.read(form.write(Grown(0, "b"))) == Grown(0, "b")
    assert form.write(Grown(0)) == {"number": 0}, "other fields are written, be they empty"


def test_a_member_without_a_pod_is_stored_as_0_2_0_stores_it() -> None:
    member = ListedIncarnation(owner=Incarnation("r", "0" * 32), backend="b", address="h:1", max_ongoing=1)
    assert "pod_uid" not in MEMBER.write(member)
    assert MEMBER.read(MEMBER.write(member)) == member
