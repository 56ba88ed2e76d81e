"""A soak of leased slots: `python -m tests.slots_soak`."""
