"""Terms of calls that are refused: each is named as its client gave it (header, query parameter, path, parameter)."""

from __future__ import annotations

import pytest

from ingress_service.core.arguments import Schemas, parameters_of
from ingress_service.core.call_options import PLAIN, RequestTerms, terms_of
from ingress_service.core.inference import terms_with, with_model
from ingress_service.core.problems import RequestRefusal
from slotmesh.oip.calls import meaning_of
from slotmesh.oip.model import InvalidRequest

KEYS = ("Ordering-Key", "Shard-Key", "Affinity-Key", "Model-Id")
EDGE = "é" * 512
BEYOND = "é" * 513


def said_of(*headers: tuple[str, str], query: tuple[tuple[str, str], ...] = ()) -> str:
    with pytest.raises(RequestRefusal) as caught:
        terms_of([(name.lower().encode(), text.encode()) for name, text in headers], query)
    assert caught.value.problem.status == 400
    return caught.value.problem.detail


@pytest.mark.parametrize("field", KEYS)
def test_keys_and_models_are_bounded_in_bytes(field: str) -> None:
    terms = terms_of([(f"x-slotmesh-{field.lower()}".encode(), EDGE.encode())])
    assert getattr(terms, field.lower().replace("-", "_")) == EDGE
    assert said_of((f"X-Slotmesh-{field}", BEYOND)) == f"X-Slotmesh-{field}: at most 1024 bytes, got 1026"


def test_durations_are_bounded() -> None:
    assert terms_of([(b"x-slotmesh-timeout", b"315576000000s")]).timeout_s == 315_576_000_000
    words = "X-Slotmesh-Timeout: at most 315,576,000,000 seconds, got 315576000001s"
    assert said_of(("X-Slotmesh-Timeout", "315576000001s")) == words


def test_metadata_is_bounded() -> None:
    lines = [(f"X-Slotmesh-Meta-{number}", "x") for number in range(65)]
    assert len(terms_of([(name.lower().encode(), b"x") for name, _ in lines[1:]]).metadata) == 64
    assert said_of(*lines) == "X-Slotmesh-Meta-NAME: at most 64 entries, got 65"
    assert terms_of([(b"x-slotmesh-meta-a", b"x" * 8_191)]).metadata
    assert said_of(("X-Slotmesh-Meta-A", "x" * 8_192)) == "X-Slotmesh-Meta-NAME: at most 8192 bytes in all, got 8193"


@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_an_slo_is_named_as_it_was_given(kind: str) -> None:
    assert said_of((f"X-Slotmesh-{kind.title()}-Slo-Ms", "x")).startswith(f"X-Slotmesh-{kind.title()}-Slo-Ms: must be")
    assert said_of(query=((f"{kind}_slo_ms", "x"),)).startswith(f"{kind}_slo_ms: must be")


def test_the_model_of_a_path_is_bounded() -> None:
    assert with_model(PLAIN, EDGE).model_id == EDGE
    with pytest.raises(RequestRefusal, match=r"^the model id of the path: at most 1024 bytes, got 1026"):
        with_model(PLAIN, BEYOND)


def test_parameters_of_an_inference_are_bounded() -> None:
    assert terms_with(PLAIN, meaning_of({"sequence_id": EDGE})).ordering_key == EDGE
    with pytest.raises(InvalidRequest, match="at most 1024 bytes") as caught:
        meaning_of({"sequence_id": BEYOND})
    assert "parameters.sequence_id" in caught.value.failure.message
    terms = RequestTerms(metadata=(("a", "x" * 8_000),))
    assert len(terms_with(terms, meaning_of({"b": "x" * 190})).metadata) == 2
    with pytest.raises(RequestRefusal, match=r"^parameters, with headers X-Slotmesh-Meta-NAME: at most 8192 bytes"):
        terms_with(terms, meaning_of({"b": "x" * 191}))
    with pytest.raises(RequestRefusal, match=r"^parameters, with headers X-Slotmesh-Meta-NAME: key 'B' is reserved"):
        terms_with(terms, meaning_of({"B": "x"}))


@pytest.mark.parametrize("schemas", [None, {"x": {}, "y": {}}, {"x": {"type": "number"}, "y": {"type": "number"}}])
def test_a_number_that_no_float_can_be_stays_text(schemas: Schemas | None) -> None:
    query = [("x", "1e308"), ("y", "-1e309")]
    assert parameters_of({}, query, schemas) == {"x": 1e308, "y": "-1e309"}
