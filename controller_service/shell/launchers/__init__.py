"""Who starts replica processes: this controller (`process`), or somebody else (`external`)."""
