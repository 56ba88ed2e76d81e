"""What is wrong with a mesh that runs: gathered from all its servers, then judged, then printed."""
