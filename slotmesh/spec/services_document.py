"""The `grpc_services` of an endpoint, as a document has them.

    grpc_services: {protos: [greeter.proto]}            # compiled where the document is read, by grpcio-tools
    grpc_services: {descriptor_set: greeter.binpb}      # as protoc --include_imports --descriptor_set_out writes it
    grpc_services: {descriptor_set_base64: "…"}         # the same in the document itself, as `slotmesh get` prints it
    grpc_services: {}                                   # none any more

Of the services that the files declare all are meant, or those that `services` names.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from slotmesh.spec.descriptor_sets import BadDescriptors, read_services
from slotmesh.spec.model import NO_SERVICES, GrpcServices
from slotmesh.spec.proto_files import services_of_descriptor_file, services_of_proto_files


class ServicesDocument(BaseModel):
    """What the document says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    protos: list[str] | None = None
    descriptor_set: str | None = None
    descriptor_set_base64: str | None = None
    services: list[str] | None = None


def read_services_document(document: ServicesDocument, base: Path) -> GrpcServices:
    """The services; paths are looked for from `base` on. Raises ValueError."""
    sources = ("protos", "descriptor_set", "descriptor_set_base64")
    said = [name for name in sources if getattr(document, name)]
    if not said:
        if document.services:
            raise ValueError(f"services: one of {', '.join(sources)} has to declare them")
        return NO_SERVICES
    if len(said) > 1:
        raise ValueError(f"{said[0]} and {said[1]} contradict each other: leave one of them out")
    names = document.services
    if document.protos:
        return services_of_proto_files([base / file for file in document.protos], base, names)
    if document.descriptor_set:
        return services_of_descriptor_file(base / document.descriptor_set, names)
    try:
        return read_services(base64.b64decode(document.descriptor_set_base64 or "", validate=True), names)
    except binascii.Error as error:
        raise ValueError(f"descriptor_set_base64: is no base64: {error}") from None
    except BadDescriptors as bad:
        raise ValueError(f"descriptor_set_base64: {bad}") from None
