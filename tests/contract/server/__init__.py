"""What every server of the mesh does, whatever it serves."""
