"""What all servers of the mesh have in common."""
