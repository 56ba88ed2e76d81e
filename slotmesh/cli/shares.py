"""Shares of backends as people type them, `v1=0.9`, and the policy that they come to. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slotmesh.spec.model import InvalidSpec, Mistake, TrafficPolicy
from slotmesh.spec.rules import show, traffic_mistakes


@dataclass(frozen=True, slots=True)
class SaidPolicy:
    """A requested change of a traffic policy."""

    policy: TrafficPolicy
    """Weights and shadows that are not given stay as they are."""
    clear_shadows: bool = False
    """There should be no shadows."""


def said_policy(
    endpoint: str,
    current: TrafficPolicy | None,
    weights: Sequence[str],
    shadows: Sequence[str],
    *,
    no_shadows: bool = False,
) -> SaidPolicy:
    """What is typed. A shadow of 0 is none, so `c=0` alone takes all of them away, as `no_shadows` does.

    `current` is the policy now, which says only whether there are weights to stay.

    Raises:
        InvalidSpec: with all mistakes of what was typed.
    """
    mistakes: list[Mistake] = []
    said = read_shares(f"{endpoint}.traffic", weights, mistakes)
    cast = read_shares(f"{endpoint}.shadows", shadows, mistakes)
    if no_shadows and shadows:
        mistakes.append(Mistake(f"{endpoint}.shadows", "--shadow and --no-shadows contradict each other"))
    if not weights and (current is None or not current.weights):
        mistakes.append(Mistake(f"{endpoint}.traffic", "there are no weights yet: give some, as v1=1"))
    policy = TrafficPolicy(weights=said, shadows={name: share for name, share in cast.items() if share != 0.0})
    if mistakes := mistakes or [*_mistakes_of(endpoint, policy)]:
        raise InvalidSpec(mistakes)
    return SaidPolicy(policy, clear_shadows=no_shadows or bool(shadows and not policy.shadows))


def _mistakes_of(endpoint: str, policy: TrafficPolicy) -> Iterator[Mistake]:
    """Mistakes in what is given. Weights that are not given stay as they are, and so are no mistake."""
    for mistake in traffic_mistakes(endpoint, policy):
        if policy.weights or mistake.path != f"{endpoint}.traffic":
            yield mistake


def read_shares(path: str, texts: Sequence[str], mistakes: list[Mistake]) -> Mapping[str, float]:
    """Shares by backend. What is no share, or is given twice, is added to `mistakes`."""
    shares: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            equals = ""
        else:
            if name in shares:
                mistakes.append(Mistake(f"{path}.{show(name)}", "is given twice"))
            shares[name] = share
        if not (name and equals):
            mistakes.append(Mistake(path, f"expected BACKEND=SHARE such as v1=0.9, got {show(text)!r}"))
    return shares
