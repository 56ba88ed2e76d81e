"""What `slotmesh status` prints of a controller: whether it leads, and why it reconciles nothing."""

from __future__ import annotations

from typing import Any

from slotmesh.cli.snapshot import ControllerStatus


def leader_text(status: ControllerStatus | None) -> str:
    """Behind the address of the controller that leads; empty where it does not say."""
    if status is None or not status.term:
        return ""
    standbys = f", standby: {', '.join(status.standby_addresses)}" if status.standby_addresses else ""
    return f"  leader, term {status.term}{standbys}"


def newer_members_text(status: ControllerStatus | None) -> str:
    """Why the controller reconciles nothing; empty if it does."""
    if status is None or not status.newer_members:
        return ""
    return "\n".join(
        (
            "Nothing is reconciled: members know a newer state than the controller's state file.",
            *(f"  {each}" for each in status.newer_members),
            "Put the newest file back, or decide what counts: slotmesh state adopt --help",
        )
    )


def standby_text(status: ControllerStatus) -> str:
    """A controller that does not lead, in a line."""
    leader = f"{status.leader_address} leads" if status.leader_address else "where the leader is, it does not know"
    return f"controller {status.address}  standby: {leader}"


def standby_json(status: ControllerStatus) -> dict[str, Any]:
    return {"controller": status.address, "leads": False, "leader": status.leader_address}
