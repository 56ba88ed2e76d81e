"""Servers that are found by a list of addresses, or by names that are resolved again and again. Pure."""
