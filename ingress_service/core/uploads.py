"""Bodies of bytes whose call is JSON or msgpack: beside parameters, or for a result that is no bytes. Pure.

A call with `application/octet-stream` has the body as its one argument, unread, and its result is bytes. Any other call
names the argument: the first one that is annotated as `bytes`, and that neither path nor query gives. In JSON it is
base64, as everywhere.
Invariants: a body goes unread as octet-stream where Accept allows that and the method may return bytes, as one without
annotations may, if its first argument takes it. A form that its result is known not to have is refused before it is
called.
"""

from __future__ import annotations

import binascii
from collections.abc import Generator, Mapping
from typing import Any, Final

import msgspec

from ingress_service.core.arguments import Schemas, bytes_argument, encoded, is_bytes, kinds_of
from ingress_service.core.media import JSON, MSGPACK, OCTETS, Forms, Framing
from ingress_service.core.openapi import DescribedMethod
from ingress_service.core.problems import refusal
from slotmesh.errors import Reason

STEP_BYTES: Final = 768 * 1024
"""Of one step: a millisecond. Divisible by 3, so that the steps' base64 can be joined."""
_PLAIN: Final = Forms(OCTETS, OCTETS, Framing.WHOLE)


def upload_forms(forms: Forms, method: DescribedMethod, *, has_parameters: bool) -> Forms:
    """The forms of the call with a body of bytes. Raises RequestRefusal."""
    if forms.call == OCTETS and _is_no_bytes(method):
        raise refusal(406, f"the result is no bytes, and Accept names {OCTETS} alone: accept {JSON}")
    if not forms.or_octets or has_parameters:
        return forms
    name = bytes_argument(method.arguments, {})
    if name is None:
        return _PLAIN
    is_first = name == method.first_argument
    return forms if method.yields or not is_first or _is_no_bytes(method) else _PLAIN


def upload_bytes(form: str, size: int, most: int) -> int:
    """What `size` bytes of a body become in a call, without other arguments. Raises RequestRefusal beyond `most`."""
    payload = -(-size // 3) * 4 if form == JSON else size
    if payload > most:
        made = f", {payload:,} as base64 in {JSON}" if form == JSON else ""
        way_out = f", or accept {MSGPACK}, which needs no base64" if size < most and form == JSON else ""
        text = f"the body has {size:,} bytes{made}, and the limit is {most:,}: send less{way_out}"
        raise refusal(413, text, Reason.PAYLOAD_TOO_LARGE)
    return payload


def upload_payload(
    form: str, body: bytes, given: Mapping[str, Any], schemas: Schemas | None
) -> Generator[None, None, bytes]:
    """The payload of the call, made in steps of about a millisecond.

    Args:
        form: of the call, JSON or msgpack.
        body: as it came.
        given: the arguments from path and query.
        schemas: of the method's arguments; None: not known.

    Raises RequestRefusal if no argument takes the body.
    """
    if (name := bytes_argument(schemas, given)) is None:
        text = f"the body is {OCTETS}, and no argument of the method takes it: annotate one as bytes"
        raise refusal(415, f"{text} that path and query do not give" if given else f"{text}, or accept {OCTETS}")
    if form != JSON:
        return encoded(form, {name: body, **given})
    pieces = [b"{", msgspec.json.encode(name), b':"']
    for at in range(0, len(body), STEP_BYTES):
        if at:
            yield
        pieces.append(binascii.b2a_base64(body[at : at + STEP_BYTES], newline=False))
    pieces += [b'",', msgspec.json.encode(given)[1:]] if given else [b'"}']
    return b"".join(pieces)


def _is_no_bytes(method: DescribedMethod) -> bool:
    """Whether the result is annotated, and never bytes."""
    kinds = kinds_of(method.schema.get("result"), {"$defs": method.schema.get("$defs", {})})
    return bool(kinds) and all(kind.keys() & {"type", "enum", "const"} and not is_bytes(kind) for kind in kinds)
