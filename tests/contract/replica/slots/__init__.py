"""Leased slots at a real replica, by frames of Execute and by its own SlotService."""
