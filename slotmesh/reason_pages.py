"""What each reason of a failure means, and what to do: for `slotmesh explain`, and for docs/errors.md.

Purpose: `reasons.toml` beside this file has the words; statuses and exception classes follow from the code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from slotmesh.errors import ERROR_OF, Executed, Reason
from slotmesh.http_status import http_status

EXECUTED_WORDS: Final[Mapping[Executed, str]] = {each: each.name.lower() for each in Executed}
_FILE: Final = "reasons.toml"
_METADATA: Final = "metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonPage:
    """The page of one reason, with the names of `reasons.toml`. Texts are Markdown without links."""

    reason: Reason
    no: str = ""
    """What happened to calls and requests that were not executed. Empty if there are none."""
    unknown: str = ""
    """What happened where it is unknown whether the call was executed."""
    yes: str = ""
    """What happened after the call was executed."""
    status_note: str = ""
    """When the gRPC status differs from the usual one."""
    sent_by: tuple[str, ...]
    """The parts of the mesh that report it."""
    metadata: tuple[str, ...] = ()
    """The keys that its metadata may have, beside `executed` and `log_ref`, which any failure may have."""
    retry: str
    """Whether and when a retry helps."""
    see: str
    """How to see more of the cause."""
    mend: str
    """How to mend it."""
    more: tuple[str, ...]
    """Pages of docs/, with the heading."""

    @property
    def conditions(self) -> dict[Executed, str]:
        """What happened, by whether the call was executed."""
        given = {Executed.NO: self.no, Executed.UNKNOWN: self.unknown, Executed.YES: self.yes}
        return {executed: text for executed, text in given.items() if text}

    @property
    def summary(self) -> str:
        """The condition in one line."""
        return (ERROR_OF[self.reason].__doc__ or "").partition("\n")[0]

    @property
    def status(self) -> str:
        """The name of the gRPC status."""
        return ERROR_OF[self.reason].usual_status

    @property
    def http(self) -> str:
        """The HTTP status at the ingress, as `413; 500 if executed`."""
        by_executed = {it: http_status(self.status, self.reason, it) for it in self.conditions}
        usual = next(iter(by_executed.values()))
        if_executed = by_executed.get(Executed.YES, usual)
        return str(usual) if if_executed == usual else f"{usual}; {if_executed} if executed"

    @property
    def error(self) -> str:
        """The exception class, with its family."""
        error = ERROR_OF[self.reason]
        family = error.__bases__[0].__name__
        return f"slotmesh.{error.__name__}" + ("" if family == "SlotmeshError" else f" (a slotmesh.{family})")


@cache
def reason_pages() -> Mapping[Reason, ReasonPage]:
    """The page of each reason, in the order of the file."""
    pages = {}
    for name, texts in _contents().items():
        if name != _METADATA:
            given: dict[str, Any] = {key: tuple(it) if isinstance(it, list) else it for key, it in texts.items()}
            pages[Reason(name)] = ReasonPage(reason=Reason(name), **given)
    return pages


@cache
def metadata_keys() -> Mapping[str, str]:
    """What each key of a failure's metadata means."""
    return _contents()[_METADATA]


def _contents() -> dict[str, dict[str, Any]]:
    text = resources.files("slotmesh").joinpath(_FILE).read_text("utf-8")
    contents: dict[str, dict[str, Any]] = tomllib.loads(text)
    return contents


def find_reasons(text: str) -> list[Reason]:
    """The reasons that a user means: by name, exception class, or the begin of an error; of a gRPC status, all."""
    word = text.strip().partition(":")[0].rpartition("/")[2].rpartition(".")[2]
    name = word.upper().replace("-", "_")
    if name in Reason.__members__:
        return [Reason[name]]
    by_class = [reason for reason, error in ERROR_OF.items() if error.__name__.lower() == word.lower()]
    return by_class or [reason for reason in reason_pages() if ERROR_OF[reason].usual_status == name]
