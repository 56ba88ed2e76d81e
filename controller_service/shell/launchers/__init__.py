"""Launchers start replica processes: this controller itself (`process`), or something outside it (`external`)."""
