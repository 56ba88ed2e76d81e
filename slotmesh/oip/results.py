"""The result of a call as the answer to an inference. Pure.

Invariant: what is wrong here was found after the call was executed, and the failure says so.
"""

from __future__ import annotations

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.oip.model import InferenceAnswer, InferenceRequest, Tensor
from slotmesh.oip.payloads import BrokenPayload, tensors_of

_SHOWN = 8


def answer_of(request: InferenceRequest, payload: bytes, version: str) -> InferenceAnswer | Failure:
    """What a result says, as far as it was asked for."""
    try:
        outputs = tensors_of(payload)
    except BrokenPayload as error:
        return unreadable(error)
    if request.outputs:
        by_name = {each.name: each for each in outputs}
        wanted: list[Tensor] = []
        for index, name in enumerate(request.outputs):
            if name not in by_name:
                told = ", ".join(list(by_name)[:_SHOWN]) or "none"
                problem = f"there is no output {name[:64]!r}; the method gave {told}"
                return cannot_be_told(f"outputs[{index}].name", problem)
            wanted.append(by_name[name])
        outputs = wanted
    return InferenceAnswer(model=request.model, version=version, request_id=request.request_id, outputs=outputs)


def unreadable(error: Exception) -> Failure:
    """The result is no tensors."""
    return Failure(reason=Reason.INTERNAL, message=f"the result cannot be read: {error}", executed=Executed.YES)


def cannot_be_told(field: str, what: str) -> Failure:
    """The request asks for what the result has not, or in a form that it has not."""
    return Failure(
        reason=Reason.BAD_REQUEST, message=f"{field}: {what}", executed=Executed.YES, metadata={"field": field}
    )
