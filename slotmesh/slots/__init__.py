"""Leased slots: what all of the mesh knows of them."""
