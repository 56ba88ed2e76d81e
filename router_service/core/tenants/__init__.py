"""Tenants: on whose behalf a client calls, and how much each may have."""
