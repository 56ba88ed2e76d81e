"""Slots: reservations, and what is done with a slot that was given."""
