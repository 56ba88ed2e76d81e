"""Slots that are reserved, then used or given back; and direct lanes, which hold slots for many calls."""
