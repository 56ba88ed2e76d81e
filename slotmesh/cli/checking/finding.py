"""What a check has found. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and may not for long, or not for everybody."""
    ERROR = "error"
    """Something does not work."""


class Section(StrEnum):
    """What is looked at, in the order in which it is shown."""

    CONTROLLER = "controller"
    REACHABILITY = "reachability"
    HTTP = "http"
    CERTIFICATES = "certificates"
    SECURITY = "security"
    VERSIONS = "versions"
    CLOCKS = "clocks"
    DESCRIPTORS = "open descriptors"
    ROUTERS = "routers"
    BACKENDS = "backends"
    ENDPOINTS = "endpoints"


@dataclass(frozen=True, slots=True)
class MeshFinding:
    """One thing that was looked at."""

    section: Section
    severity: Severity
    subject: str
    """As `router/r-1`, which other commands take; empty for the mesh."""
    text: str
    fix: str = ""
    """What to do; empty where all is well."""


def ok(section: Section, text: str) -> MeshFinding:
    return MeshFinding(section, Severity.OK, "", text)
