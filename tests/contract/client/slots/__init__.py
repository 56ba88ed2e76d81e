"""Leased slots as the client has them, against a SlotService that is a fake."""
