"""The bearer token that a client shows with each rpc.

Invariants: in no repr, log or message. What a function gives is asked for anew for each rpc, so that a token may be
replaced while connections live; it has to be quick, as nothing else happens meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from slotmesh.foreign import type_name

Token = str | Callable[[], str]
"""A token, or a function that gives it: called for each rpc, in the thread that makes it."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""As RFC 6750 has it."""
_MAX_LENGTH: Final = 8192


class NoToken(ValueError):
    """There is no token that could be sent; the message has no part of it."""


class TokenSource:
    """Gives the header that carries the token."""

    def __init__(self, token: Token) -> None:
        """Raises NoToken where it is a str that no token can be."""
        self._token = token
        if not callable(token):
            self.authorization()

    def authorization(self) -> str:
        """The value of the metadata `authorization`.

        Raises:
            NoToken: the function failed, or gave none.
        """
        try:
            token = self._token() if callable(self._token) else self._token
        except BaseException as error:  # noqa: BLE001 - whatever the application's function raises
            # Its words may hold the token.
            raise NoToken(f"the function that gives the token raised {type_name(error)}") from None
        if not issubclass(type(token), str):
            raise NoToken(f"the token must be a str, got {type_name(token)}")
        token = str.__str__(token)  # a subclass's own methods are not called
        if not _TOKEN.fullmatch(token) or len(token) > _MAX_LENGTH:
            raise NoToken(
                f"the token is none that can be sent: 1 to {_MAX_LENGTH} letters, digits and . _ ~ + / -, without "
                "spaces and line ends"
            )
        return f"Bearer {token}"

    def __repr__(self) -> str:
        return "<token>"
