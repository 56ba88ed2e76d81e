"""The settings of bearer tokens, of what clients and operators connect to: routers and controllers.

Invariants: tokens travel by TLS only; an issuer is given whole, or the process does not start. `jwt` and `cryptography`
are imported only where an issuer is.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Self

from slotmesh.config import Duration, FieldKind, SettingsError
from slotmesh.config.declaring import Field, field_validator, model_validator
from slotmesh.config.listening import SET_UP
from slotmesh.config.tls import TlsSettings
from slotmesh.security.secret_files import UnusableFile
from slotmesh.security.tokens import Tokens
from slotmesh.security.tokens.jwt_rules import DEFAULT_ALGORITHMS, MAX_LEEWAY_S, JwtRules, algorithms_problem

_ISSUER: Final = {
    "jwt_issuer": "--jwt-issuer URL (the claim iss)",
    "jwt_audience": "--jwt-audience TEXT (the claim aud)",
    "jwt_jwks": "--jwt-jwks FILE (the issuer's public keys)",
}
Names = Annotated[str, FieldKind("names with commas between them", "NAME[,NAME]")]


class TokenSettings(TlsSettings):
    """Base of the settings of what accepts bearer tokens."""

    tokens: Path | None = Field(
        None,
        description="File with static bearer tokens, as `slotmesh token create` makes it; others on the machine cannot "
        "read it (mode 600). Needs TLS.",
    )
    jwt_issuer: str | None = Field(
        None,
        min_length=1,
        description="Issuer whose JWT are accepted as bearer tokens, as the claim iss has it. Needs TLS, and "
        "--jwt-audience and --jwt-jwks.",
    )
    jwt_audience: str | None = Field(None, min_length=1, description="What the claim aud of a JWT has to name.")
    jwt_jwks: Path | None = Field(
        None, description="File with the issuer's public keys (JWKS), which is read again when it changes."
    )
    jwt_algorithms: Names = Field(
        ",".join(DEFAULT_ALGORITHMS),
        description="Algorithms by which JWT may be signed, with commas between them: RS, PS or ES with 256, 384 or "
        "512, and EdDSA.",
    )
    jwt_roles_claim: str = Field(
        "slotmesh_roles",
        min_length=1,
        description="Claim of a JWT with a list of the roles of its holder: viewer, invoker, operator.",
    )
    jwt_leeway: Duration = Field(
        timedelta(seconds=30),
        ge=timedelta(0),
        le=timedelta(seconds=MAX_LEEWAY_S),
        description="By how much the clock of the issuer may differ.",
    )

    @property
    def accepts_tokens(self) -> bool:
        """Whether anybody can be known by a token."""
        return self.tokens is not None or self.jwt_issuer is not None

    @field_validator("jwt_algorithms")
    @classmethod
    def _are_algorithms(cls, text: str) -> str:
        if problem := algorithms_problem(_names(text)):
            raise ValueError(problem)
        return text

    @model_validator
    def _has_whole_issuer(self) -> Self:
        given = [name for name in _ISSUER if getattr(self, name) is not None]
        if missing := [words for name, words in _ISSUER.items() if given and name not in given]:
            raise ValueError(f"--{given[0].replace('_', '-')}: needs {' and '.join(missing)} as well")
        return self

    @model_validator
    def _travel_by_tls(self) -> Self:
        if self.accepts_tokens and self.tls_paths is None:
            flag = "--tokens" if self.tokens is not None else "--jwt-issuer"
            raise ValueError(f"{flag}: tokens need TLS, or everybody on the way reads them: {SET_UP}")
        return self

    def token_verifier(self) -> Tokens | None:
        """Who the holders of tokens are, by files that are read and checked; None: no token is accepted.

        Asked once a process.

        Raises:
            SettingsError: a file cannot be used; the message names it and the way out.
        """
        if not self.accepts_tokens:
            return None
        rules = None
        if self.jwt_issuer is not None and self.jwt_audience is not None:
            rules = JwtRules(
                issuer=self.jwt_issuer,
                audience=self.jwt_audience,
                algorithms=_names(self.jwt_algorithms),
                roles_claim=self.jwt_roles_claim,
                leeway_s=self.jwt_leeway.total_seconds(),
            )
        try:
            return Tokens(self.tokens, self.jwt_jwks, rules)
        except UnusableFile as error:
            raise SettingsError(f"tokens: {error}") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
