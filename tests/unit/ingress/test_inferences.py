"""Inferences of one version as messages."""

from __future__ import annotations

import pytest

from ingress_service.convert import request_to_wire
from slotmesh.oip.model import InferenceRequest, InvalidRequest, ParameterValue


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (-(2**63), "int64_param"),
        (2**63 - 1, "int64_param"),
        (2**63, "uint64_param"),
        (2**64 - 1, "uint64_param"),
        (True, "bool_param"),
        ("x", "string_param"),
        (0.5, "double_param"),
    ],
)
def test_parameters_keep_their_values(value: ParameterValue, field: str) -> None:
    put = request_to_wire(InferenceRequest(model="m", parameters={"p": value})).parameters["p"]
    assert (put.WhichOneof("parameter_choice"), getattr(put, field)) == (field, value)


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**64])
def test_numbers_that_no_field_holds_are_refused(value: int) -> None:
    with pytest.raises(InvalidRequest, match="more than 64 bits"):
        request_to_wire(InferenceRequest(model="m", parameters={"p": value}))
