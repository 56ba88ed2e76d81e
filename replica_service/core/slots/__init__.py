"""Leased slots: the table, what callers do with them, and the calls in them."""
