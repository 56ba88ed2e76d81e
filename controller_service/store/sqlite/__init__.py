"""A store in one SQLite file: `store.py` is for the event loop, `state_file.py` for the one thread that writes."""
