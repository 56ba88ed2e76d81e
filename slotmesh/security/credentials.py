"""What somebody is known by: a token or a certificate that was checked, as far as it has to be looked at again."""

from __future__ import annotations

from typing import Protocol

from slotmesh.security.identity import Identity


class Credential(Protocol):
    """A token or a certificate that was accepted. It has no secret."""

    @property
    def identity(self) -> Identity:
        """Who has shown it, and until when."""

    def problem(self) -> str | None:
        """Why it would not be accepted again, its end aside; None where it would. The words are for its holder.

        Asked once a second for each stream, on the event loop: nothing is verified anew that was verified before, but
        for what has changed since.
        """
