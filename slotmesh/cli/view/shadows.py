"""What has gone wrong with the copies of calls that shadows get, for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slotmesh.cli.snapshot import Members


def shadow_troubles(backend: str, members: Members) -> Iterator[str]:
    """Copies of calls that a shadow did not get, and those that failed there, for a person."""
    shadow = members.shadow(backend)
    if shadow.dropped:
        share = 100 * shadow.dropped / shadow.copies
        yield (
            f"shadow {backend}: {shadow.dropped:,} of {shadow.copies:,} copies of calls ({share:.3g} %) were dropped, "
            "since none of its slots was free; give it more replicas, or a smaller share"
        )
    if shadow.failed:
        share = 100 * shadow.failed / (shadow.copies - shadow.dropped)
        yield (
            f"shadow {backend}: {shadow.failed:,} of the {shadow.copies - shadow.dropped:,} copies that it got"
            f" ({share:.3g} %) failed; its log (`slotmesh logs {backend}`) says why"
        )
