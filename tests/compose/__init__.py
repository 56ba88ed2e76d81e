"""The compose file on a real engine, under load: it is scaled, restarted and killed, and the history checker says."""
