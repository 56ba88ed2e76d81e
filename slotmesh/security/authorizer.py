"""Who makes an rpc, and whether they may: asked once when it starts, and once a second while it streams.

Purpose: finds the identity behind an rpc, by its bearer token or by the certificate of its connection, and has the
decision made by the rule that the proto declares.
Invariants: denied by default. A token goes before a certificate: what comes with a token that is not known is refused,
whatever the certificate. What holds no longer ends the streams that were opened with it.
Owner: the server's app, on the server's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from slotmesh.errors import Executed, Failure
from slotmesh.security.audit import AUDIT
from slotmesh.security.credentials import Credential
from slotmesh.security.current import CALLER, RPC
from slotmesh.security.identity import Identity
from slotmesh.security.peer_certificates import PeerCertificates, Trust
from slotmesh.security.refusals import decide, has_expired, unknown_caller
from slotmesh.security.rules import Rule
from slotmesh.security.tokens.failures import BadToken, TokenProblem

_HEADER: Final = "authorization"
_SCHEME: Final = "bearer "


class TokenVerifier(Protocol):
    """Who the holders of bearer tokens are. Both methods are quick: they are asked on the event loop."""

    def identify(self, token: str) -> Identity:
        """Who holds the token.

        Raises:
            BadToken: nobody whom this server knows. Its message is for the holder of the token, its reason is not.
        """
        ...

    def verify(self, token: str) -> Credential:
        """What the holder of the token is known by, who keeps a stream open, say.

        Raises:
            BadToken: as above.
        """
        ...


@dataclass(frozen=True, slots=True)
class Admission:
    """An rpc that was let in: by whom it is made, and by what they are known."""

    rule: Rule
    credential: Credential | None
    """None where the rpc is open to everybody."""


class Authorizer:
    """What one server, or several of one process, know of who may call them."""

    def __init__(
        self,
        trust_domain: str,
        tokens: TokenVerifier | None = None,
        *,
        trust: Trust = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`tokens` None: no token is accepted. `trust` gives the authorities that certificates need now.

        Without it what a handshake has checked holds until it expires. `now`: seconds since 1970.
        """
        self._certificates = PeerCertificates(trust_domain, trust)
        self._tokens = tokens
        self._now = now

    def admit(self, rule: Rule, context: Any) -> Admission | Failure:
        """Lets an rpc in, and makes who calls the `caller()` of the running task; or says why not."""
        if rule.is_open:
            return Admission(rule, None)
        identity: Identity | None = None
        why = ""
        try:
            token = _token_of(context)
            credential = self._certificates.credential_of(context) if token is None else self._verified(token)
        except BadToken as error:
            failure: Failure | None = unknown_caller(rule, f"{rule.needs}: {error}")
            why = error.reason
        else:
            identity = None if credential is None else credential.identity
            failure = decide(identity, rule, self._now())
            if failure is None and credential is not None:
                if (problem := credential.problem()) is None:
                    CALLER.set(credential.identity)
                    RPC.set(rule.method)
                    return Admission(rule, credential)
                failure, why = unknown_caller(rule, f"{rule.needs}: {problem}"), problem
        failure = failure or unknown_caller(rule, rule.needs)
        AUDIT.denied(identity, rule.method, failure, context.peer(), why)
        return failure

    def lapsed(self, admission: Admission) -> Failure | None:
        """Why an rpc that was let in may not go on; None where it may."""
        credential = admission.credential
        if credential is None:
            return None
        if has_expired(credential.identity, self._now()):
            why: str | None = f"the credential of {credential.identity.name} has expired"
        else:
            why = credential.problem()
        return None if why is None else unknown_caller(admission.rule, why, Executed.UNKNOWN)

    def _verified(self, token: str) -> Credential:
        if self._tokens is None:
            raise BadToken(
                TokenProblem.UNKNOWN, "this server accepts no tokens: there is no --tokens and no --jwt-jwks"
            )
        return self._tokens.verify(token)


def _token_of(context: Any) -> str | None:
    """The bearer token of an rpc; None where it has none.

    Raises:
        BadToken: there is something else in its place.
    """
    found = [value for key, value in context.invocation_metadata() or () if key == _HEADER]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0], str) or not found[0].lower().startswith(_SCHEME):
        raise BadToken(TokenProblem.MALFORMED, "the metadata `authorization` is not `Bearer TOKEN`, once")
    return found[0][len(_SCHEME) :].strip()
